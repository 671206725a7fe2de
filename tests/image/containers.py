# SPDX-License-Identifier: Apache-2.0
"""Building the image and running it, in a storage of this tier's own: what else podman has is left alone.

runc, cgroups without systemd and the host's network: this works in a container, too, and with both versions
of control groups. Containers are stopped and removed by their names, which no two runs share.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.image import tools

ROOT = Path(__file__).parents[2]
CLOSED = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")
_STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{0}/graph"\nrunroot = "{1}"\n'
_CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Image(NamedTuple):
    """One build."""

    name: str
    archive: Path

    @property
    def id(self) -> str:
        """The hash of what it is."""
        return str(self.inspected["Id"])

    @property
    def inspected(self) -> Any:
        """What podman says of it."""
        return json.loads(podman("image", "inspect", self.name))[0]


class Container(NamedTuple):
    """A container that was started."""

    name: str

    @property
    def state(self) -> Any:
        """Whether it runs, its pid on this machine, how and when it ended."""
        return json.loads(podman("inspect", self.name))[0]["State"]

    @property
    def ended(self) -> float:
        """When it ended, in seconds since 1970."""
        return datetime.fromisoformat(self.state["FinishedAt"]).timestamp()

    def log(self) -> list[str]:
        """The lines of its standard error."""
        return _run("podman", "logs", self.name).stderr.splitlines()


def environ() -> dict[str, str]:
    """The environment in which buildah and podman use the storage of this tier."""
    base = tools.cache() / "containers"
    base.mkdir(parents=True, exist_ok=True)
    (base / "storage.conf").write_text(_STORAGE.format(base, _runroot(base)))
    (base / "containers.conf").write_text(_CONTAINERS)
    of_ours = {"CONTAINERS_STORAGE_CONF": base / "storage.conf", "CONTAINERS_CONF": base / "containers.conf"}
    return os.environ | {name: str(path) for name, path in of_ours.items()}


def _runroot(base: Path) -> str:
    """Where podman keeps what a reboot ends; it takes no path of more than 50 characters there."""
    return f"/run/nodeagent-tests-{hashlib.sha256(bytes(base)).hexdigest()[:8]}"


def build(target: Path, name: str) -> Image:
    """Build the image as ``make image`` does."""
    paths = {"PYTHONPATH": f"{ROOT}/packaging:{ROOT}", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "builder.image", "--to", str(target), "--name", name]
    done = subprocess.run(command, env=environ() | paths, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Image(name, next(target.glob("*.image.tar")))


def podman(*arguments: str) -> str:
    """What podman prints."""
    done = _run("podman", *arguments)
    assert done.returncode == 0, f"podman {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environ(), capture_output=True, text=True, check=False)


@contextmanager
def files(image: Image) -> Iterator[Path]:
    """The image's root, mounted."""
    try:
        yield Path(podman("image", "mount", image.name).strip())
    finally:
        podman("image", "unmount", image.name)


@contextmanager
def running(image: Image, options: Sequence[str], *arguments: str) -> Iterator[Container]:
    """A container of the image while it is wanted."""
    name = f"nodeagent-test-{os.getpid()}"
    try:
        podman("run", "--detach", "--name", name, *options, image.name, *arguments)
        yield Container(name)
    finally:
        podman("rm", "--force", "--time", "5", name)
