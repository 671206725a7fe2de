# SPDX-License-Identifier: Apache-2.0
"""The one owner of the question: may this id be given to a pod, or removed from the host? Never both.

An Allocate and a removal may meet at any moment. Both come here and leave their mark without an await in
between, so one of them is first, and the other finds its mark. Who got an id is presumed to hold it until the
kubelet names the holder: then the allocations know more. Once a scan of the host has followed a removal, the
Host knows what became of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest
from nodeagent.model.allocation import Holder, Reservations


class _Given(NamedTuple):
    """What stands for the holder of an id until the kubelet names it, and when the id has settled."""

    holder: Holder
    until: float


class ReservationBook:
    """Writes ``reservations`` of the Snapshot. Times are those of the event loop, in seconds."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.began: Latest[None] = Latest(None)  # an id settles where none did: there is an end to wait for
        self._snapshots = snapshots
        self._given: dict[str, _Given] = {}
        self._settled = 0.0  # what is to settle later than that is settling

    def give(self, holders: Mapping[str, Holder], until: float) -> None:
        """Mark the ids as given, and settling until then; all of them, or none.

        :raises Refused: if one of them is being removed.
        """
        for device_id in holders:
            if device_id in self._marks.withdrawn:
                raise Refused(
                    f"{device_id} is being removed: it is not wanted on this node any more",
                    "the kubelet's list is renewed; try the pod again",
                )
        first = not self._marks.settling
        self._given |= {device_id: _Given(holder, until) for device_id, holder in holders.items()}
        if until > self._settled:
            self._mark(replace(self._marks, settling=self._marks.settling.union(holders)))
        if first:
            self.began.touch()

    def settle(self, now: float) -> None:
        """The time of all ids that were to settle until now is over."""
        self._settled = max(self._settled, now)
        self._renew()

    def named(self, asked: float) -> None:
        """The kubelet, asked at that time, has named all holders of what had settled by then."""
        self._given = {device_id: given for device_id, given in self._given.items() if given.until > asked}
        self._renew()

    @property
    def presumed(self) -> Mapping[str, Holder]:
        """Who holds what has settled and was not named yet."""
        given = self._given.items()
        return {device_id: each.holder for device_id, each in given if each.until <= self._settled}

    def next_settled(self) -> float | None:
        """When the first of the ids has settled; None if none is settling."""
        return min((self._given[device_id].until for device_id in self._marks.settling), default=None)

    def withdraw(self, ids: Collection[str]) -> bool:
        """Mark the ids as about to be removed; False, and no mark, if one was given a moment ago."""
        if not self._marks.settling.isdisjoint(ids):
            return False
        self._mark(replace(self._marks, withdrawn=self._marks.withdrawn.union(ids)))
        return True

    def restore(self, ids: Collection[str]) -> None:
        """Nothing is done to these ids any more, and the Host shows what became of them."""
        self._mark(replace(self._marks, withdrawn=self._marks.withdrawn.difference(ids)))

    @property
    def _marks(self) -> Reservations:
        return self._snapshots.now.reservations

    def _renew(self) -> None:
        settling = frozenset(each for each, given in self._given.items() if given.until > self._settled)
        self._mark(replace(self._marks, settling=settling))

    def _mark(self, marks: Reservations) -> None:
        self._snapshots.publish(replace(self._snapshots.now, reservations=marks))
