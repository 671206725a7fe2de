# SPDX-License-Identifier: Apache-2.0
"""Files that are written whole and at once: a reader finds the old text or the new one, also after a crash.

And files that a person names on the command line, read to a bound. Knows nothing of what is in them. What was
not finished has a name that ends in ``.new``.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from nodeagent.base import advice
from nodeagent.base.advice import Doing
from nodeagent.base.errors import KernelRefused

STDIN = "-"  # in place of a path


def given(path: str, limit: int) -> bytes:
    """What a person gives: the file, or standard input; a byte more than the limit if it is longer. Blocks.

    :raises OSError: if it cannot be read.
    """
    with open(0 if path == STDIN else path, "rb", closefd=path != STDIN) as file:
        return file.read(limit + 1)


def replace(path: str | Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file, for all to read unless told otherwise, and its directory if need be. Blocks.

    :raises OSError: if it cannot be written.
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
            aside.unlink()  # a full disk has room for the name, and who looks through a directory finds it
        raise


def put(path: str | Path, text: str, more: str, *, what: str = "", mode: int = 0o644) -> None:
    """As ``replace``; ``what`` the file is to people, if its path alone does not say it. Blocks.

    :raises KernelRefused: if it cannot be written, with what to do, and ``more``: what goes without it.
    """
    try:
        replace(path, text, mode=mode)
    except OSError as error:
        raise KernelRefused(
            f"{what}{path} cannot be written: {advice.words(error)}",
            advice.on(error, Doing.WRITE, more),
            errno=error.errno or 0,
            path=str(path),
        ) from error


def _private(path: str, flags: int) -> int:
    """Opened for its owner alone: nobody else reads what is only to get its mode."""
    return os.open(path, flags, 0o600)
