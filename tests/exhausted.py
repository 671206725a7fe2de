# SPDX-License-Identifier: Apache-2.0
"""A process that may open nothing any more, as if all its descriptors were used up."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

SELF = 0


@contextmanager
def no_descriptors(pid: int = SELF) -> Iterator[None]:
    """The kernel lets the process open nothing; what is open stays so."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
