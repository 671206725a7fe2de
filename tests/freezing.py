# SPDX-License-Identifier: Apache-2.0
"""A file whose writers sleep in the kernel where no signal reaches them: its file system is frozen.

FIFREEZE (Linux, ioctl_fs) makes a writer sleep as a write to sysfs does that waits for a virtual machine: in
state D, also after SIGKILL, until it is let go. It takes root and a loop device.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_SIZE = 4 << 20  # bytes; ext4 wants no less
_WAIT = "percpu_rwsem_wait"  # of sb_start_write in include/linux/fs.h, since Linux 5.6


def possible() -> bool:
    """True if this process may mount a file system of its own."""
    return os.geteuid() == 0 and Path("/dev/loop-control").exists()


class Frozen:
    """Files on a file system that can be frozen."""

    def __init__(self, mounted: Path) -> None:
        self._mounted = mounted

    def take(self, path: Path) -> None:
        """Have a file or directory on this file system; at its path is a link then."""
        kept = self._mounted / path.name
        if path.is_dir():
            shutil.copytree(path, kept)
            shutil.rmtree(path)
        else:
            kept.write_bytes(path.read_bytes())
            path.unlink()
        path.symlink_to(kept)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Who writes to one of these files, or makes one, sleeps until the end; reading goes on."""
        _run("fsfreeze", "--freeze", self._mounted)
        try:
            yield
        finally:
            _run("fsfreeze", "--unfreeze", self._mounted)

    def sleepers(self, pid: int) -> list[Path]:
        """The threads of this process that sleep there, as directories of proc(5)."""
        return waiting(pid, _WAIT)


@contextlib.contextmanager
def frozen(directory: Path) -> Iterator[Frozen]:
    """Such a file system, mounted below ``directory``; gone at the end."""
    image, mounted = directory / "frozen.img", directory / "frozen"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(_SIZE)
    _run("mkfs.ext4", "-q", image)
    _run("mount", "-o", "loop", image, mounted)
    try:
        yield Frozen(mounted)
    finally:
        _run("umount", "--lazy", mounted)


def waiting(pid: int, where: str) -> list[Path]:
    """The threads of a process that wait in that function of the kernel (wchan), as directories of proc(5).

    State D alone would not tell: a disk that is busy makes threads sleep so for a moment.
    """
    with contextlib.suppress(OSError):  # the process has ended
        threads = list(Path("/proc", str(pid), "task").iterdir())
        return [thread for thread in threads if _text(thread / "wchan") == where]
    return []


def children(pid: int) -> list[int]:
    """The processes that the threads of this one have started and that have not ended."""
    files = Path("/proc", str(pid), "task").glob("*/children")
    return [int(child) for file in files for child in _text(file).split()]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)
