# SPDX-License-Identifier: Apache-2.0
"""What pods had that the kubelet has forgotten a moment ago: deleted by force, their containers still run.

Knows no host. Times are those of the event loop, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.model.allocation import Allocations
from nodeagent.model.host import HostDevice


class Forgotten:
    """Since when, by id, and by the paths of nodes that came with it.

    Who was forgotten before this daemon came is not known, so it may be anything.
    """

    def __init__(self, container_end: float) -> None:
        """``container_end``: seconds for a container to end whose pod was forgotten."""
        self._container_end = container_end
        self._began: float | None = None
        self._since: dict[str, float] = {}

    def note(self, before: Allocations, after: Allocations, now: float) -> None:
        """Who held something ``before``, and does not any more."""
        self._began = now if self._began is None else self._began
        tables = (before.holders, after.holders), (before.brought, after.brought)
        ids = {each for old, new in tables if old is not new for each in old.keys() - new.keys()}
        groups = {str(group) for each in ids for group in before.groups.get(each, ())}
        self.gone(ids.union(groups, *_answers_gone(before, after)), now)

    def gone(self, ids: Iterable[str], now: float) -> None:
        """Whoever had these does not any more."""
        self._since = {each: self._since[each] for each in self.lately(now)} | dict.fromkeys(ids, now)

    def lately(self, now: float) -> frozenset[str]:
        """The ids that pods had of which it is known, and that may not have ended by ``now``."""
        return frozenset(each for each, since in self._since.items() if now < since + self._container_end)

    def has(self, host_device: HostDevice, now: float) -> bool:
        """True if a pod had it, or its whole group, and may not have ended by ``now``."""
        if self._began is None or now < self._began + self._container_end:
            return True
        return not self.lately(now).isdisjoint((host_device.id, str(host_device.group)))


def _answers_gone(before: Allocations, after: Allocations) -> Iterator[tuple[str, ...]]:
    """Each id of nodes or CDI names that is let go of, with its nodes: another may have such an id yet."""
    for old, new in (before.nodes, after.nodes), (before.cdi, after.cdi):
        for name, ids in old.items() if old is not new else ():
            for each in ids.keys() - new.get(name, {}).keys():
                if after.holder_of(name, each) is None:
                    yield (each, *before.nodes.get(name, {}).get(each, ()))
