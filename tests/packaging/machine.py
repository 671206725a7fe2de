# SPDX-License-Identifier: Apache-2.0
"""A booted system in a container: a systemd of its own as pid 1, on a root tree that is as before afterwards.

systemd-nspawn with an overlay above the tree, no network, and a cgroup of its own in each hierarchy: without
one two containers share what nspawn calls its payload. Works where this machine's pid 1 is not systemd. The
PCI bus in there is this machine's: what writes to devices gets a made-up tree.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

INTERVAL = 0.05  # seconds between two looks
_CGROUPS = Path("/sys/fs/cgroup")
_NOTES = (
    *("/srv/", "/proc/", "/sys/", "/dev/", "/run/systemd/", "/run/udev/", "/run/log/"),
    *("/tmp/systemd-private-", "/var/tmp/systemd-private-", "/var/log/", "/var/lib/dpkg/", "/var/lib/rpm/"),
    *("/var/lib/systemd/", "/var/cache/ldconfig", "/var/cache/debconf"),
)
_NUMBERS = itertools.count()
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/srv",  # Debian's rpm has its database there
}


def until(look: Callable[[], T | None], what: str, seconds: float = 20.0) -> T:
    """The first answer that is not None or False; raises AssertionError after the deadline."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still not: {what}"
        time.sleep(INTERVAL)
    return found


class Machine:
    """A running system, known by the pid of its systemd."""

    def __init__(self, leader: int) -> None:
        self._enter = ["nsenter", "--target", str(leader), "--all"]

    def run(
        self, command: str, *, check: bool = True, stdin: bytes = b"", seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command in there; stdout and stderr are kept apart."""
        done = subprocess.run(
            [*self._enter, "sh", "-c", command],
            input=stdin,
            capture_output=True,
            env=_ENVIRONMENT,
            timeout=seconds,
            check=False,
        )
        texts = done.stdout.decode(), done.stderr.decode()
        assert not check or done.returncode == 0, f"{command}: exit {done.returncode}\n{''.join(texts)}"
        return subprocess.CompletedProcess(command, done.returncode, *texts)

    @contextlib.contextmanager
    def talking(self, command: str) -> Iterator[Callable[[str], str]]:
        """A program in there that answers a line with a line; it ends when there are no more."""
        with subprocess.Popen(
            [*self._enter, "sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_ENVIRONMENT,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            told, heard = process.stdin, process.stdout

            def ask(line: str) -> str:
                print(line, file=told, flush=True)
                return heard.readline().strip()

            yield ask

    def says(self, command: str) -> str:
        """What a command prints, whatever its exit code."""
        return self.run(command, check=False).stdout.strip()

    def put(self, file: Path) -> str:
        """Copy a file into /srv; its path there."""
        self.write(path := f"/srv/{file.name}", file.read_bytes())
        return path

    def write(self, path: str, content: bytes | str) -> None:
        """Write a file, and the directories above it."""
        quoted = shlex.quote(path)
        data = content if isinstance(content, bytes) else content.encode()
        self.run(f"mkdir -p $(dirname {quoted}) && cat > {quoted}", stdin=data)

    def files(self) -> set[str]:
        """Every path but those of what any system notes of packages, services and time."""
        found = self.says("find / /run /tmp -xdev").splitlines()
        return {path for path in found if not path.startswith(_NOTES)}

    def show(self, what: str, unit: str = "nodeagent") -> str:
        """A property of a unit."""
        return self.says(f"systemctl show --value -p {what} {unit}")

    def journal(self, *arguments: str) -> str:
        """Messages of the service, oldest first."""
        self.run("journalctl --sync")
        return self.says(f"journalctl -u nodeagent -o cat --no-pager {' '.join(arguments)}")

    def until_active(self, seconds: float = 20.0) -> None:
        """Wait until the service runs."""
        until(lambda: self.show("ActiveState") == "active", "nodeagent is active", seconds)


@contextlib.contextmanager
def booted(root: Path, *, network: bool = False) -> Iterator[Machine]:
    """A system on this tree, until the end of the block; ``network``: with that of this machine."""
    name = f"nodeagent-{os.getpid()}-{next(_NUMBERS)}"
    homes = [home / name for home in _hierarchies()]
    for home in homes:
        home.mkdir()
    process = _start(name, root, homes, network)
    try:
        leader = until(lambda: _leader(homes[0]), "the container has a systemd")
        machine = Machine(leader)
        up = ("running", "degraded")
        until(lambda: machine.says("systemctl is-system-running") in up, "the container is up")
        yield machine
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        for home in homes:
            _remove(home)


def _hierarchies() -> list[Path]:
    """Where a container gets a cgroup: the unified hierarchy, and systemd's own where there are several."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [_CGROUPS / "systemd", _CGROUPS / "unified"]


def _start(name: str, root: Path, homes: list[Path], network: bool) -> subprocess.Popen[bytes]:
    """nspawn, in the cgroups before it is nspawn."""
    enter = "".join(f"echo $$ > {home}/cgroup.procs; " for home in homes)
    command = [
        *(
            "systemd-nspawn",
            "--quiet",
            "--register=no",
            "--keep-unit",
            "--volatile=overlay",
        ),
        *(() if network else ("--private-network",)),
        *("--link-journal=no", "--console=pipe", f"--machine={name}", f"--directory={root}", "--boot"),
    ]
    return subprocess.Popen(
        ["sh", "-c", f"{enter}exec {shlex.join(command)}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _leader(home: Path) -> int | None:
    """The first process of the container's init.scope."""
    with contextlib.suppress(OSError):
        pids = (home / "payload/init.scope/cgroup.procs").read_text().split()
        return int(pids[0]) if pids else None
    return None


def _remove(home: Path) -> None:
    """Remove a cgroup with all below it; systemd may still be about to leave it."""

    def gone() -> bool:
        with contextlib.suppress(OSError):
            for directory, _, _ in os.walk(home, topdown=False):
                Path(directory).rmdir()
        return not home.exists()

    until(gone, f"{home} is empty")
