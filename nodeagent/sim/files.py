# SPDX-License-Identifier: Apache-2.0
"""Small file operations for simulated hosts: text, links and directories.

Existing attributes are written in place, as a program that pokes at sysfs would do; a reader sees the
old or the new text. Knows nothing of devices.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


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
    """Write an existing file so that nobody who watches its directory notices, as a kernel changes it.

    inotify tells the directory through which the file was opened; ``aside`` is a free path that is another.
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
    """Move a directory away, in place of what is there."""
    remove_tree(to)
    directory(to.rpartition("/")[0])
    Path(path).rename(to)
