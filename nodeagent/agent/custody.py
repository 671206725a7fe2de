# SPDX-License-Identifier: Apache-2.0
"""Which ids were given to a pod a moment ago, and which are about to be taken off the host: never both.

An Allocate and a removal may meet at any moment. Both look here and leave their mark without an await in
between, so one of them comes first and the other one finds its mark. Once the kubelet names the holder, the
allocations know more than this; once a look at the host has followed the removal, the Host does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest


class Custody:
    """Owns the cells of ids that are ``settling`` and of those that are ``withdrawn``."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.settling: Latest[frozenset[str]] = Latest(frozenset(), on_change)
        self.withdrawn: Latest[frozenset[str]] = Latest(frozenset(), on_change)
        self._given: Mapping[str, float] = {}  # id → when it has settled

    def give(self, ids: Collection[str], until: float) -> None:
        """Mark the ids as given away and settling until then; raises Refused if one is being removed."""
        for device_id in ids:
            if device_id in self.withdrawn.get():
                raise Refused(
                    f"{device_id} is being removed: it is not wanted on this node any more",
                    "the kubelet's list is renewed; try the pod again",
                )
        self._keep({**self._given, **dict.fromkeys(ids, until)})

    def settle(self, asked: float) -> None:
        """Whoever holds the ids that had settled when the kubelet was asked, it has said so."""
        self._keep({device_id: until for device_id, until in self._given.items() if until > asked})

    def next_settled(self) -> float | None:
        """When the first of the ids has settled; None if none is settling."""
        return min(self._given.values(), default=None)

    def withdraw(self, ids: Collection[str]) -> bool:
        """Mark the ids as about to be removed; False, and no mark, if one was given away a moment ago."""
        if not self.settling.get().isdisjoint(ids):
            return False
        self.withdrawn.set(self.withdrawn.get() | set(ids))
        return True

    def restore(self, ids: Collection[str]) -> None:
        """Nothing is done to these ids any more, and the Host shows what became of them."""
        self.withdrawn.set(self.withdrawn.get() - set(ids))

    def _keep(self, given: Mapping[str, float]) -> None:
        self._given = given
        self.settling.set(frozenset(given))
