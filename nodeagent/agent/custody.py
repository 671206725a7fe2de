# SPDX-License-Identifier: Apache-2.0
"""Which ids were given to a pod a moment ago, and which are about to be taken off the host: never both.

An Allocate and a removal may meet at any moment. Both look here and leave their mark without an await in
between, so one of them comes first and the other one finds its mark. Once the kubelet names the holder, the
allocations know more than this; once a look at the host has followed the removal, the Host does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest


class Custody:
    """Owns the cells of ids that are ``settling`` and of those that are ``withdrawn``."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.settling: Latest[frozenset[str]] = Latest(frozenset(), on_change)
        self.withdrawn: Latest[frozenset[str]] = Latest(frozenset(), on_change)

    def give(self, ids: Collection[str]) -> None:
        """Mark the ids as given away; raises Refused if one of them is being removed."""
        for device_id in ids:
            if device_id in self.withdrawn.get():
                raise Refused(
                    f"{device_id} is being removed: it is not wanted on this node any more",
                    "the kubelet's list is renewed; try the pod again",
                )
        self.settling.set(self.settling.get() | set(ids))

    def settled(self, ids: Collection[str]) -> None:
        """Whoever holds these ids now, the kubelet has said so."""
        self.settling.set(self.settling.get() - set(ids))

    def withdraw(self, ids: Collection[str]) -> bool:
        """Mark the ids as about to be removed; False, and no mark, if one was given away a moment ago."""
        if not self.settling.get().isdisjoint(ids):
            return False
        self.withdrawn.set(self.withdrawn.get() | set(ids))
        return True

    def restore(self, ids: Collection[str]) -> None:
        """Nothing is done to these ids any more, and the Host shows what became of them."""
        self.withdrawn.set(self.withdrawn.get() - set(ids))
