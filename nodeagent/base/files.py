# SPDX-License-Identifier: Apache-2.0
"""Writes files atomically: a reader finds the old or the new content, also after a crash.

The module also reads files that are named on the command line, up to a size limit. A temporary file has a
name that ends in ``.new``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from nodeagent.base import hints
from nodeagent.base.errors import KernelRefused

STDIN = "-"  # means standard input


def read_input(path: str, limit: int) -> bytes:
    """Return the content of a file or of standard input, cut one byte after the limit. Blocks.

    :raises OSError: if the file cannot be read.
    """
    with open(0 if path == STDIN else path, "rb", closefd=path != STDIN) as file:
        return file.read(limit + 1)


class NotRegular(OSError):
    """Raised when a path is a pipe, device or socket instead of a regular file."""


def read_regular(path: str, limit: int | None = None) -> bytes:
    """Return the content of a regular file, cut one byte after the limit. Blocks.

    :raises NotRegular: if the path is not a regular file; reading a pipe without a writer would block for
        ever.
    :raises OSError: if the file cannot be read.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NotRegular(errno.EINVAL, "not a regular file", path)
        return file.read() if limit is None else file.read(limit + 1)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def replace(path: str | Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file atomically, readable for all by default, and create its directory if needed. Blocks.

    :raises OSError: if the file cannot be written.
    """
    at = Path(path)
    aside = at.with_suffix(".new")
    at.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        with open(aside, "w", encoding="utf-8", opener=_private) as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(at)
    except OSError:
        with contextlib.suppress(OSError):
            # a full disk still has room for an empty file, which would remain in the directory
            aside.unlink()
        raise


def put(path: str | Path, text: str, more: str, *, what: str = "", mode: int = 0o644) -> None:
    """Write a file as ``replace`` does; ``what`` describes the file in messages. Blocks.

    :raises KernelRefused: if the file cannot be written; the hint ends with ``more``, the consequence.
    """
    try:
        replace(path, text, mode=mode)
    except OSError as error:
        raise KernelRefused(
            f"{what}{path} cannot be written: {hints.strerror(error)}",
            hints.for_errno(error, "write", more),
            errno=error.errno or 0,
            path=str(path),
        ) from error


def _private(path: str, flags: int) -> int:
    """Open a file for its owner only, until it gets its final mode."""
    return os.open(path, flags, 0o600)
