# SPDX-License-Identifier: Apache-2.0
"""Counts Allocate calls by resource and result, and measures their durations.

If a resource disappears and returns, its counters continue. ``agent.allocate`` calls this module around each
Allocate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from nodeagent.base.errors import AllocationRefused
from nodeagent.model.ids import ResourceName
from nodeagent.model.status import NO_ALLOCATIONS, NO_DURATIONS, AllocationsStatus


class AllocateTally:
    """The numbers of Allocate calls of all resources since the start."""

    def __init__(self) -> None:
        self.durations = NO_DURATIONS
        self._by_resource: dict[ResourceName, AllocationsStatus] = {}

    def of(self, name: ResourceName) -> AllocationsStatus:
        """The numbers of Allocate calls of one resource."""
        return self._by_resource.get(name) or NO_ALLOCATIONS

    @contextmanager
    def counted(self, name: ResourceName) -> Iterator[None]:
        """Count the enclosed block as one Allocate: granted, refused or failed, depending on its error."""
        began = anyio.current_time()
        ended = AllocationsStatus(failed=1)
        try:
            yield
            ended = AllocationsStatus(granted=1)
        except AllocationRefused:
            ended = AllocationsStatus(refused=1)
            raise
        finally:
            sums = map(sum, zip(self._by_resource.get(name, NO_ALLOCATIONS), ended, strict=True))
            self._by_resource[name] = AllocationsStatus(*sums)
            self.durations = self.durations.and_one(anyio.current_time() - began)
