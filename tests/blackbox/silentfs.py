# SPDX-License-Identifier: Apache-2.0
"""A file system that answers nobody, over a directory: as one of a server that has gone. For root."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def silent(path: Path) -> Iterator[None]:
    """Whoever looks into the directory hangs, until the end; then it gets an error."""
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", bytes(path), b"fuse", 0, options) != 0:
        os.close(fuse)
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(fuse)
        subprocess.run(["umount", "--lazy", str(path)], check=False)


def possible(where: Path) -> bool:
    """True if such a file system can be made here."""
    try:
        with silent(where):
            return True
    except OSError:
        return False
