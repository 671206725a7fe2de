# SPDX-License-Identifier: Apache-2.0
"""Facts about this process from /proc (proc(5)): start time, threads, file descriptors, memory.

The path is always the real /proc, without ``--root``, because the host's /proc may not contain this process.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

_HOST_PIDS = "pid:[4026531836]"  # inode of the host's PID namespace: PROC_PID_INIT_INO in linux/proc_ns.h
_START, _THREADS = 19, 17  # fields of /proc/self/stat after the name, which may contain any character


class Numbers(NamedTuple):
    """Figures of this process. ``started``: seconds since 1970. A value that /proc lacks is 0 or None."""

    started: float
    cpu_seconds: float
    resident_bytes: int
    open_files: int
    most_files: int
    threads: int
    capabilities: int | None


def read_numbers() -> Numbers:
    """Return the current figures."""
    import resource  # imported here because it is rarely needed

    used = resource.getrusage(resource.RUSAGE_SELF)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files = len(os.listdir("/proc/self/fd")) - 1  # one of the descriptors belongs to this listing
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
    """Return True if this process is in the host's PID namespace; False if not, or if that cannot be read."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _HOST_PIDS
    except OSError:
        return False


def capabilities() -> int | None:
    """Return the effective capabilities as a bit mask (capabilities(7)); None if /proc does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith("CapEff:")), None)
    return None if found is None else int(found, 16)


def release_memory() -> None:
    """Free unreachable cycles and return free pages to the system; takes tens of milliseconds with a large
    heap.

    glibc keeps free pages between used blocks; malloc_trim(3) returns them. C libraries other than glibc lack
    malloc_trim.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@cache
def _started(ticks: int) -> float:
    """Return the start time from clock ticks since boot; computed once, because setting the clock would
    shift it.
    """
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return round(time.time() - age, 2)
