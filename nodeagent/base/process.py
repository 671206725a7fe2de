# SPDX-License-Identifier: Apache-2.0
"""This process: its numbers from its own /proc (proc(5)), a tenth of a millisecond; and its memory.

Not below ``--root``: that is the host's, and this process is the one that asks.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

_HOST_PIDS = "pid:[4026531836]"  # of the host: PROC_PID_INIT_INO in linux/proc_ns.h
_START, _THREADS = 19, 17  # fields of /proc/self/stat after the name, which may hold anything


class Numbers(NamedTuple):
    """``started``: seconds since 1970. Zero, or None, stands for what /proc does not tell."""

    started: float
    cpu_seconds: float
    resident_bytes: int
    open_files: int
    most_files: int
    threads: int
    capabilities: int | None


def read_numbers() -> Numbers:
    """The numbers of now."""
    import resource  # here: rarely needed

    used = resource.getrusage(resource.RUSAGE_SELF)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files = len(os.listdir("/proc/self/fd")) - 1  # one of them lists the others
    except OSError:
        return Numbers(0.0, used.ru_utime + used.ru_stime, 0, 0, most, 0, None)
    return Numbers(
        _started(int(fields[_START])),
        round(used.ru_utime + used.ru_stime, 3),
        pages * os.sysconf("SC_PAGE_SIZE"),
        files,
        most,
        int(fields[_THREADS]),
        capabilities(),
    )


def has_host_pids() -> bool:
    """True if our process ids are the host's; False in another namespace, and if that cannot be read."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _HOST_PIDS
    except OSError:
        return False


def capabilities() -> int | None:
    """Those in effect, as a mask of bits (capabilities(7)); None if /proc does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith("CapEff:")), None)
    return None if found is None else int(found, 16)


def release_memory() -> None:
    """Free unreachable cycles and return free pages to the system; tens of milliseconds with a large heap.

    glibc keeps pages between live blocks; malloc_trim(3) returns them. Other C libraries lack the call.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _started(ticks: int) -> float:
    """The time of the start, so many ticks after the boot; found once, since a clock that is set moves it."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return round(time.time() - age, 2)
