# SPDX-License-Identifier: Apache-2.0
"""Gives memory back after a burst: collects circles of objects, and returns free pages to the system.

Python frees to the C library, which keeps what lies between live blocks; glibc's malloc_trim(3) hands the
whole free pages back. Other C libraries lack it, and then only the collection is done.
"""

from __future__ import annotations

import ctypes
import gc


def tidy() -> None:
    """Collect and trim; takes some tens of milliseconds with a large heap."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
