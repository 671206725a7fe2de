# SPDX-License-Identifier: Apache-2.0
"""Which ids were given to a pod a moment ago, and which are about to be taken off the host: never both.

An Allocate and a removal may meet at any moment. Both look here and leave their mark without an await in
between, so one of them comes first and the other one finds its mark. What has settled is presumed to be held
until the kubelet names the holder: then the allocations know more than this. Once a look at the host has
followed the removal, the Host does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest
from nodeagent.model.allocation import Holder


class _Given(NamedTuple):
    """What stands for the holder of an id until the kubelet names it, and when the id has settled."""

    holder: Holder
    until: float


class Reservations:
    """Owns the cells of ids that are ``settling`` and of those that are ``withdrawn``."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.settling: Latest[frozenset[str]] = Latest(frozenset(), on_change)
        self.withdrawn: Latest[frozenset[str]] = Latest(frozenset(), on_change)
        self._given: Mapping[str, _Given] = {}
        self._settled = 0.0  # what is to settle later than that is settling

    def give(self, holders: Mapping[str, Holder], until: float) -> None:
        """Mark the ids as given away and settling until then; raises Refused if one is being removed."""
        for device_id in holders:
            if device_id in self.withdrawn.get():
                raise Refused(
                    f"{device_id} is being removed: it is not wanted on this node any more",
                    "the kubelet's list is renewed; try the pod again",
                )
        self._keep({**self._given, **{each: _Given(holder, until) for each, holder in holders.items()}})

    def settle(self, now: float) -> None:
        """The time of all ids that were to settle until now is over."""
        self._settled = max(self._settled, now)
        self._keep(self._given)

    def named(self, asked: float) -> None:
        """Whoever holds the ids that had settled when the kubelet was asked, it has said so."""
        self._keep({each: given for each, given in self._given.items() if given.until > asked})

    @property
    def presumed(self) -> Mapping[str, Holder]:
        """What has settled, and nobody is named for it yet."""
        return {each: given.holder for each, given in self._given.items() if given.until <= self._settled}

    def next_settled(self) -> float | None:
        """When the first of the ids has settled; None if none is settling."""
        return min((self._given[each].until for each in self.settling.get()), default=None)

    def withdraw(self, ids: Collection[str]) -> bool:
        """Mark the ids as about to be removed; False, and no mark, if one was given away a moment ago."""
        if not self.settling.get().isdisjoint(ids):
            return False
        self.withdrawn.set(self.withdrawn.get() | set(ids))
        return True

    def restore(self, ids: Collection[str]) -> None:
        """Nothing is done to these ids any more, and the Host shows what became of them."""
        self.withdrawn.set(self.withdrawn.get() - set(ids))

    def _keep(self, given: Mapping[str, _Given]) -> None:
        self._given = given
        self.settling.set(frozenset(each for each in given if given[each].until > self._settled))
