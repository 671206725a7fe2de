# SPDX-License-Identifier: Apache-2.0
"""The files of a simulated host: text, links as the kernel makes them, directories and device nodes.

Existing attributes are written in place, as a program that writes to sysfs does; a reader sees the old or
the new text. ``Tree`` has the paths of one host below a directory. Device nodes are empty files, or with
``mknod`` real ones that lead to no driver (major 240, for local use).
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

LOCAL_MAJOR = 240
_ASIDE = "/.announced"


def directory(path: str) -> None:
    """Make a directory with its parents."""
    Path(path).mkdir(parents=True, exist_ok=True)


def write(path: str, text: str) -> None:
    """Write a file, making its directory if need be."""
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
    """Write an existing file so that a watch of its directory gets no event, as when the kernel changes it.

    inotify reports the directory through which the file was opened; ``aside`` is a free path in another one.
    """
    os.link(path, aside)
    write_new(aside, text)
    Path(aside).unlink()


def read(path: str) -> bytes:
    """The content of a file."""
    return Path(path).read_bytes()


def link(path: str, target: str) -> None:
    """Make a symbolic link; an equal one may exist."""
    at = Path(path)
    at.parent.mkdir(parents=True, exist_ok=True)
    if not at.is_symlink():
        at.symlink_to(target)


def renew_link(path: str, aside: str) -> None:
    """Replace a symbolic link by an equal one in one step; ``aside`` is a free path."""
    Path(aside).symlink_to(Path(path).readlink())
    Path(aside).rename(path)


def target(path: str) -> str | None:
    """The last component of a link's target, or None."""
    try:
        return Path(path).readlink().name
    except OSError:
        return None


def remove(path: str) -> None:
    """Remove a file or link if it is there."""
    Path(path).unlink(missing_ok=True)


def remove_tree(path: str) -> None:
    """Remove a directory and all below it."""
    shutil.rmtree(path, ignore_errors=True)


def move(path: str, to: str) -> None:
    """Move a directory, over one that is there."""
    remove_tree(to)
    directory(to.rpartition("/")[0])
    Path(path).rename(to)


class Tree:
    """A host's file system below ``directory``; host paths begin with a slash."""

    def __init__(self, directory: str, mknod: bool) -> None:
        self.directory = directory
        self._mknod = mknod
        self._minor = 0

    def path(self, path: str) -> str:
        """The path in this process of a host path."""
        return self.directory + path

    def real(self, path: str) -> str:
        """The host path to which links lead from a host path."""
        return os.path.realpath(self.path(path)).removeprefix(os.path.realpath(self.directory))

    def link(self, path: str, to: str) -> None:
        """A relative link between two host paths, as the kernel makes them."""
        link(self.path(path), os.path.relpath(to, path.rpartition("/")[0]))

    def node(self, path: str) -> None:
        """Make a device node, e.g. /dev/kvm."""
        directory(self.path(path.rpartition("/")[0]))
        if not self._mknod:
            write_new(self.path(path), "")
            return
        self._minor += 1
        os.mknod(self.path(path), stat.S_IFCHR | 0o600, os.makedev(LOCAL_MAJOR, self._minor))

    def ensure_node(self, path: str) -> None:
        """Make a device node unless it is there."""
        if not os.path.lexists(self.path(path)):
            self.node(path)

    def announce(self, link: str) -> None:
        """Renew the link by which a bus lists a device: inotify reports it, as the kernel sends a uevent."""
        if os.path.lexists(self.path(link)):
            renew_link(self.path(link), self.path(_ASIDE))

    def remove(self, path: str) -> None:
        """Remove a file, link or node if it is there."""
        remove(self.path(path))
