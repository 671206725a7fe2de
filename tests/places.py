# SPDX-License-Identifier: Apache-2.0
"""Where tests keep many small files: in memory, if it has room for them, so that they wait for no disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = "/dev/shm"


@contextmanager
def in_memory(prefix: str, room: int = 0, memory: str = MEMORY) -> Iterator[Path]:
    """A directory while this is open; where ``room`` bytes are not free, one of Python's usual place."""
    base = memory if _free(memory) > room else None
    with tempfile.TemporaryDirectory(prefix=prefix, dir=base, ignore_cleanup_errors=True) as made:
        yield Path(made)


def _free(path: str) -> int:
    """Bytes; 0 where nothing can be written."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0
