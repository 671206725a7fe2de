# SPDX-License-Identifier: Apache-2.0
"""Creates the files of a simulated host: attributes, links as the kernel makes them, directories, device
nodes.

An existing attribute is overwritten in place, as when a program writes to sysfs; a reader gets the old or the
new text. ``Tree`` contains the paths of one host below a directory. Device nodes are empty files, or with
``mknod`` real nodes without a driver (major 240, for local use).
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

LOCAL_MAJOR = 240
_ASIDE = "/.announced"


def directory(path: str) -> None:
    """Create a directory with its parents."""
    Path(path).mkdir(parents=True, exist_ok=True)


def write(path: str, text: str) -> None:
    """Write a file, and create its directory if needed."""
    directory(path.rpartition("/")[0])
    write_new(path, text)


def write_new(path: str, text: str) -> None:
    """Write a file in an existing directory."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        if text:
            os.write(fd, text.encode())
        os.ftruncate(fd, len(text.encode()))
    finally:
        os.close(fd)


def write_unseen(path: str, text: str, aside: str) -> None:
    """Write an existing file without an inotify event in its directory, as when the kernel changes an
    attribute. inotify reports the directory through which a file was opened; ``aside`` is an unused path in
    another directory.
    """
    os.link(path, aside)
    write_new(aside, text)
    Path(aside).unlink()


def read(path: str) -> bytes:
    """Return the content of a file."""
    return Path(path).read_bytes()


def link(path: str, target: str) -> None:
    """Create a symbolic link, unless an equal one exists."""
    at = Path(path)
    at.parent.mkdir(parents=True, exist_ok=True)
    if not at.is_symlink():
        at.symlink_to(target)


def renew_link(path: str, aside: str) -> None:
    """Replace a symbolic link by an equal one atomically; ``aside`` is an unused path."""
    Path(aside).symlink_to(Path(path).readlink())
    Path(aside).rename(path)


def target(path: str) -> str | None:
    """Return the last component of a link's target; None if there is no link."""
    try:
        return Path(path).readlink().name
    except OSError:
        return None


def remove(path: str) -> None:
    """Remove a file or link if it exists."""
    Path(path).unlink(missing_ok=True)


def remove_tree(path: str) -> None:
    """Remove a directory and its contents."""
    shutil.rmtree(path, ignore_errors=True)


def move(path: str, to: str) -> None:
    """Move a directory, replacing an existing one."""
    remove_tree(to)
    directory(to.rpartition("/")[0])
    Path(path).rename(to)


class Tree:
    """The file system of a simulated host below ``directory``; host paths begin with a slash."""

    def __init__(self, directory: str, mknod: bool) -> None:
        self.directory = directory
        self._mknod = mknod
        self._minor = 0

    def path(self, path: str) -> str:
        """Return the real path of a path of the simulated host."""
        return self.directory + path

    def real(self, path: str) -> str:
        """Return the path of the simulated host to which the links of a path lead."""
        return os.path.realpath(self.path(path)).removeprefix(os.path.realpath(self.directory))

    def link(self, path: str, to: str) -> None:
        """Create a relative link between two paths of the simulated host, as the kernel does."""
        link(self.path(path), os.path.relpath(to, path.rpartition("/")[0]))

    def node(self, path: str) -> None:
        """Create a device node, for example /dev/kvm."""
        directory(self.path(path.rpartition("/")[0]))
        if not self._mknod:
            write_new(self.path(path), "")
            return
        self._minor += 1
        os.mknod(self.path(path), stat.S_IFCHR | 0o600, os.makedev(LOCAL_MAJOR, self._minor))

    def ensure_node(self, path: str) -> None:
        """Create a device node unless it exists."""
        if not os.path.lexists(self.path(path)):
            self.node(path)

    def announce(self, link: str) -> None:
        """Replace the link by which a bus lists a device: inotify reports this, as the kernel would send a
        uevent.
        """
        if os.path.lexists(self.path(link)):
            renew_link(self.path(link), self.path(_ASIDE))

    def remove(self, path: str) -> None:
        """Remove a file, link or device node if it exists."""
        remove(self.path(path))
