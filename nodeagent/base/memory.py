# SPDX-License-Identifier: Apache-2.0
"""When circles of objects are collected, and when free pages go back to the system.

Not while the daemon starts: nearly all that is made then stays, and looking at it again and again takes a
twentieth of that time. After it on the event loop alone, from time to time, and at once after a burst: Python
would do it in whichever thread happens to make an object, and what is freed there may close a descriptor that
the thread does not have (``base.apart``). Python frees to the C library, which
keeps what lies between live blocks; glibc's malloc_trim(3) hands the whole free pages back. Other C
libraries lack it, and then only the collection is done.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator


def begin_start() -> None:
    """Collect nothing from now on; what has led here, such as argparse's circles, goes before."""
    gc.collect()
    gc.disable()


def end_start() -> None:
    """Never visit what was made so far: it stays. From now on ``collect`` is to be called now and then."""
    gc.freeze()


def collect() -> None:
    """Collect what Python would have collected by now, had it been allowed to."""
    due = [
        generation
        for generation, (count, most) in enumerate(zip(gc.get_count(), gc.get_threshold(), strict=True))
        if 0 < most < count
    ]
    if due:
        gc.collect(due[-1])


def tidy() -> None:
    """Collect and trim; takes some tens of milliseconds with a large heap."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect nothing in any thread until the end of the block."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
