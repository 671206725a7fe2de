# SPDX-License-Identifier: Apache-2.0
"""The one owner of the question: may this id be given to a pod, or removed from the host? Never both.

An Allocate and a removal may meet at any moment. Both come here and leave their mark without an await in
between, so one of them is first, and the other finds its mark. Who got an id holds it from then on, until the
kubelet names the holder, or names nobody where it should: then the allocations know more. Once a scan of the
host has followed a removal, the Host knows what became of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from nodeagent.agent.admission import Admission
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest
from nodeagent.model.allocation import Holder, PodList, Pods, Reservations


class _Given(NamedTuple):
    """Who holds an id until the kubelet names it, when it was given, and until when its group stays open."""

    holder: Holder
    at: float
    until: float
    named: bool = False


class ReservationBook:
    """Writes ``reservations`` of the Snapshot. Times are those of the event loop, in seconds."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.began: Latest[None] = Latest(None)  # an id settles where none did: there is an end to wait for
        self._snapshots = snapshots
        self._given: dict[str, _Given] = {}
        self._admission = Admission("")  # the pod that is being admitted
        self._numbers = itertools.count(1)
        self._settled = 0.0  # what was to settle by then has settled

    def asker(self, pods: Pods | None) -> Admission:
        """Whose Allocate it is at which the kubelet names these pods: the admission under way, or a new one.

        ``pods`` None: the kubelet was not asked, or did not answer.
        """
        if pods is not None and self._admission.asks_again(pods):
            self._admission.named(pods)
            return self._admission
        return Admission(f"admission {next(self._numbers)}", pods)

    def admit(self, admission: Admission) -> None:
        """This pod is being admitted: if it is another one than before, what that one got has settled."""
        if admission is not self._admission:
            self._end()
            self._admission = admission

    def give(self, holders: Mapping[str, Holder], now: float, until: float) -> None:
        """Mark the ids as given to the pod that is being admitted; all of them, or none.

        What is left of their groups stays open to it until then, at the longest.

        :raises Refused: if one of them is being removed.
        """
        for device_id in holders:
            if device_id in self._marks.withdrawn:
                raise Refused(
                    f"{device_id} is being removed: it is not wanted on this node any more",
                    "the kubelet's list is renewed; try the pod again",
                )
        first = not self._marks.settling
        self._admission.gave((holder.resource, device_id) for device_id, holder in holders.items())
        fresh = {device_id: _Given(holder, now, until) for device_id, holder in holders.items()}
        open_still = self._marks.settling
        self._given = {
            device_id: given._replace(until=until) if device_id in open_still else given
            for device_id, given in {**self._given, **fresh}.items()
        }
        self._publish(now)
        if first:
            self.began.touch()

    def settle(self, now: float) -> None:
        """The time of all ids that were to settle until now is over."""
        self._publish(now)

    def named(
        self, answer: PodList, asked: float, since: float = 0.0, asker: Admission | None = None
    ) -> None:
        """The kubelet, asked at that time, names these holders; it knows of what was given ``since``.

        Asked inside an Allocate (of ``asker``) it names all that the ones before have given, but what plain
        init containers got. Otherwise an answer of ours may still be on its way until it has settled.
        """
        if asker is None and self._admission.ended_by(answer.pods):
            self._end()
        names = self._names(answer)
        kept: dict[str, _Given] = {}
        for device_id, given in self._given.items():
            holder = answer.holders.get(device_id)
            if holder is not None and holder.resource == given.holder.resource:
                kept[device_id] = given._replace(named=True)
            elif given.at < since or not self._released(device_id, given, asked, asker):
                known = names.get(given.holder.identity)
                kept[device_id] = given if known is None else given._replace(holder=_as(given.holder, known))
        self._given = kept
        self._publish(asked)

    @property
    def presumed(self) -> Mapping[str, Holder]:
        """Who holds what has settled and was not named since it was given."""
        settling = self._marks.settling
        return {each: holder for each, holder in self._marks.given.items() if each not in settling}

    def next_settled(self) -> float | None:
        """When the first of the ids has settled; None if none is settling."""
        return min((self._given[device_id].until for device_id in self._marks.settling), default=None)

    def withdraw(self, ids: Collection[str]) -> bool:
        """Mark the ids as about to be removed; False, and no mark, if one was given a moment ago."""
        if not self._given.keys().isdisjoint(ids):
            return False
        self._mark(replace(self._marks, withdrawn=self._marks.withdrawn.union(ids)))
        return True

    def restore(self, ids: Collection[str]) -> None:
        """Nothing is done to these ids any more, and the Host shows what became of them."""
        self._mark(replace(self._marks, withdrawn=self._marks.withdrawn.difference(ids)))

    @property
    def _marks(self) -> Reservations:
        return self._snapshots.now.reservations

    def _names(self, answer: PodList) -> dict[str, Holder]:
        """Identity → the holder that the kubelet names for one of the ids of that admission."""
        given = ((each.holder, answer.holders.get(device_id)) for device_id, each in self._given.items())
        return {holder.identity: named for holder, named in given if named is not None and holder.identity}

    def _released(self, device_id: str, given: _Given, asked: float, asker: Admission | None) -> bool:
        """True if nobody has got the id after all, or not any more, as the kubelet does not name it."""
        if given.at >= asked:
            return False
        if asker is None:
            return asked >= given.until
        return asker is not self._admission or (given.holder.resource, device_id) not in asker.given

    def _end(self) -> None:
        """The admission under way is over."""
        self._given = {device_id: given._replace(until=0.0) for device_id, given in self._given.items()}
        self._publish(self._settled)

    def _publish(self, now: float) -> None:
        """Mark what is given and settling, now that this time has come; forget what is neither."""
        self._settled = now = max(self._settled, now)
        wanted = self._given.items()
        self._given = {each: given for each, given in wanted if given.until > now or not given.named}
        settling = frozenset(each for each, given in self._given.items() if given.until > now)
        waiting = {each: given.holder for each, given in self._given.items() if not given.named}
        self._mark(replace(self._marks, given=waiting, settling=settling))

    def _mark(self, marks: Reservations) -> None:
        self._snapshots.publish(replace(self._snapshots.now, reservations=marks))


def _as(holder: Holder, named: Holder) -> Holder:
    """The holder of another id of the same pod, which the kubelet has named."""
    return replace(holder, namespace=named.namespace, pod=named.pod, identity="")
