# SPDX-License-Identifier: Apache-2.0
"""What runs short around a daemon, and what it is started under for it.

Descriptors are taken by prlimit from a daemon that runs. Disks are two small file systems in memory, at the
daemon's own directories, that are filled to the last block and the last name. Watches and instances of
inotify are a limit of a user namespace in which the daemon is started: the machine's own is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.blackbox.harness import Daemon
from tests.namespaces import ALONE, namespaces

OURS = ("run/nodeagent", "var/lib/nodeagent")
NO_WATCHES, NO_INSTANCES = "max_inotify_watches", "max_inotify_instances"


def under(limit: str) -> tuple[str, ...]:
    """A command that becomes the daemon where there is none of it."""
    return (*ALONE, "sh", "-c", f'echo 0 >/proc/sys/user/{limit} && exec "$@"', "sh")


def limits(root: Path) -> tuple[str, ...]:
    """The limits under which a daemon is to live; none, if this machine gives out no user namespaces.

    Today the daemon exits at once without an inotify instance. One that does not exit is tested, too.
    """
    if not namespaces():
        return ()
    return (NO_WATCHES, NO_INSTANCES) if _bears_no_instances(root) else (NO_WATCHES,)


def _bears_no_instances(root: Path) -> bool:
    """True if a daemon that is started without can soon be asked how it is."""
    run = [sys.executable, "-m", "nodeagent", "--root", str(root), "run", "--http-listen", ""]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen([*under(NO_INSTANCES), *run], stdout=nowhere, stderr=nowhere) as daemon:
        while daemon.poll() is None and not (root / "run/nodeagent/status.sock").exists():
            time.sleep(0.05)
        bears = daemon.poll() is None
        daemon.kill()
    return bears


@contextlib.contextmanager
def no_descriptors(daemon: Daemon, spare: int) -> Iterator[None]:
    """The daemon can open so many files more, and then none."""
    pid, kind = daemon.pid, resource.RLIMIT_NOFILE
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (daemon.usage().fds + spare, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, kind, before)


class Disks:
    """The small file systems; an empty list of them without the right to mount."""

    def __init__(self, root: Path) -> None:
        self._mounted: list[Path] = []
        if os.geteuid() == 0:
            for name in OURS:
                self._mount(root / name)

    def _mount(self, path: Path) -> None:
        path.mkdir(parents=True)
        options = "size=256k,nr_inodes=32,mode=755"
        command = ["mount", "-t", "tmpfs", "-o", options, "nodeagent-chaos", str(path)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            self._mounted.append(path)

    @property
    def there(self) -> bool:
        """True if there is a disk that can be filled."""
        return bool(self._mounted)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """No block and no name is left on them."""
        for path in self._mounted:
            _fill(path)
        try:
            yield
        finally:
            for path in self._mounted:
                for filler in path.glob("filler*"):
                    filler.unlink()

    def unmount(self) -> None:
        """Leave no trace."""
        for path in self._mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
        self._mounted = []


def _fill(path: Path) -> None:
    try:
        with (path / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    with contextlib.suppress(OSError):
        for number in range(1000):
            (path / f"filler{number}").touch()
