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
from nodeagent.model.allocation import Holder, PodList, Pods, Possession, Reservations

UNFINISHED = 60.0  # seconds that another plugin may take for a container of the pod that is being admitted
AGAIN = 0.5  # seconds between two looks whether it has answered


class _Given(NamedTuple):
    """Who holds an id until the kubelet names it, when it was given, and when the kubelet should name it."""

    holder: Holder
    at: float
    due: float
    pod: str | None = None  # ``namespace/name``, if that could be told


class ReservationBook:
    """Writes ``reservations`` of the Snapshot. Times are those of the event loop, in seconds."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.began: Latest[None] = Latest(None)  # an id settles where none did: there is an end to wait for
        self._snapshots = snapshots
        self._given: dict[str, _Given] = {}
        self._admission = Admission("")  # the last pod that was admitted
        self._settles: float | None = None  # when what is left of its groups is open no more; None: it is not
        self._opened = 0.0  # when it was given something last
        self._numbers = itertools.count(1)
        self._pods: Pods | None = None  # whom the kubelet named last

    def asker(self, pods: Pods | None) -> Admission:
        """Whose Allocate it is at which the kubelet names these pods: the admission under way, or a new one.

        ``pods`` None: the kubelet was not asked, or did not answer.
        """
        if pods is not None and self._admission.asks_again(pods, lately=self._settles is not None):
            self._admission.named(pods)
            return self._admission
        return Admission(f"admission {next(self._numbers)}", pods, self._pods)

    def admit(self, admission: Admission, until: float) -> None:
        """This pod is being admitted: what is left of its groups is open to it until then, at the longest.

        If it is another one than before, what that one got has settled. What has settled stays so.
        """
        if admission is not self._admission:
            self._end()
            self._admission = admission
        elif self._settles is None:
            return
        first, self._settles = self._settles is None, until
        self._publish()
        if first:
            self.began.touch()

    def give(self, holders: Mapping[str, Holder], now: float, due: float) -> None:
        """Mark the ids as given to the pod that is being admitted; all of them, or none.

        By the time ``due`` the kubelet should name who has them.

        :raises Refused: if one of them is being removed.
        """
        for device_id in holders:
            if device_id in self._marks.withdrawn:
                raise Refused(
                    f"{device_id} is being removed: it is not wanted on this node any more",
                    "the kubelet's list is renewed; try the pod again",
                )
        self._admission.gave((holder.resource, device_id) for device_id, holder in holders.items())
        self._opened, pod = now, self._admission.name
        self._given |= {device_id: _Given(holder, now, due, pod) for device_id, holder in holders.items()}
        self._publish()

    def settle(self, now: float, books: Collection[Possession] | None = None) -> None:
        """If the time of the admission is over by now, what it got has settled.

        Unless by its books the kubelet may still be at it: it enters what a container got when it has asked
        for all of it, and may wait for another plugin. ``books`` has what is over; None: not known.
        """
        if self._settles is None or self._settles > now:
            return
        if books is None or self._admission.given <= set(books) or now > self._opened + UNFINISHED:
            self._settles = None
        else:
            self._settles = now + AGAIN
        self._publish()

    def named(
        self, answer: PodList, asked: float, since: float = 0.0, asker: Admission | None = None
    ) -> None:
        """The kubelet, asked at that time, names these holders; it knows of what was given ``since``.

        Asked inside an Allocate (of ``asker``) it names all that the ones before have given, but what plain
        init containers got. Otherwise an answer of ours may still be on its way until it has settled.
        """
        if asker is None and self._admission.ended_by(answer.pods):
            self._end()
        self._pods = answer.pods
        names = self._names(answer)
        kept: dict[str, _Given] = {}
        for device_id, given in self._given.items():
            holder = answer.holders.get(device_id)
            if holder is not None and holder.resource == given.holder.resource:
                continue
            unheard = given.at < since or given.at >= asked
            if unheard or not self._released(device_id, given, answer.pods, asker, late=asked >= given.due):
                known = names.get(given.holder.identity)
                kept[device_id] = given if known is None else given._replace(holder=_as(given.holder, known))
        self._given = kept
        self._publish()

    @property
    def presumed(self) -> Mapping[str, Holder]:
        """Who holds what has settled and was not named since it was given."""
        settling = self._marks.settling
        return {each: holder for each, holder in self._marks.given.items() if each not in settling}

    @property
    def settles(self) -> float | None:
        """When all ids have settled; None if none is settling."""
        return self._settles

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

    def _released(
        self, device_id: str, given: _Given, pods: Pods, asker: Admission | None, *, late: bool
    ) -> bool:
        """True if nobody has got the id after all, or not any more, as the kubelet does not name it."""
        if asker is not None and asker is self._admission:
            return (given.holder.resource, device_id) not in asker.given
        if given.pod is not None:
            return given.pod not in pods or (asker is not None and asker.name == given.pod)
        return asker is not None or late

    def _end(self) -> None:
        """The admission under way is over, and the kubelet should name who has what it got."""
        self._settles = None
        self._given = {device_id: given._replace(due=0.0) for device_id, given in self._given.items()}
        self._publish()

    def _publish(self) -> None:
        """Mark what is given and not named yet, and what is settling."""
        open_still = () if self._settles is None else self._admission.given
        settling = frozenset(device_id for _, device_id in open_still)
        waiting = {device_id: given.holder for device_id, given in self._given.items()}
        self._mark(replace(self._marks, given=waiting, settling=settling))

    def _mark(self, marks: Reservations) -> None:
        self._snapshots.publish(replace(self._snapshots.now, reservations=marks))


def _as(holder: Holder, named: Holder) -> Holder:
    """The holder of another id of the same pod, which the kubelet has named."""
    return replace(holder, namespace=named.namespace, pod=named.pod, identity="")
