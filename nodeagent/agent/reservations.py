# SPDX-License-Identifier: Apache-2.0
"""The one owner of the question: may this id be given to a pod, or removed from the host? Never both.

An Allocate and a removal may meet at any moment. Both come here and leave their mark without an await in
between, so one of them is first, and the other finds its mark. Who got an id holds it from then on, until the
kubelet names the holder, or names nobody where it should: then the allocations know more. Once a scan of the
host has followed a removal, the Host knows what became of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from nodeagent.agent.admission import Admission, Admissions
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest
from nodeagent.model.allocation import Holder, PodList, Possession, Reservations


class _Given(NamedTuple):
    """Who holds an id until the kubelet names it, when it was given, and when the kubelet should name it."""

    holder: Holder
    at: float
    due: float
    pods: frozenset[str] = frozenset()  # the names of whom one has it


class ReservationBook:
    """Writes ``reservations`` of the Snapshot. Times are those of the event loop, in seconds."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.began: Latest[None] = Latest(None)  # an id settles where none did: there is an end to wait for
        self.admissions = Admissions()
        self._snapshots = snapshots
        self._given: dict[str, _Given] = {}

    def admit(self, admission: Admission, until: float) -> None:
        """This pod is being admitted: what is left of its groups is open to it until then, at the longest.

        If it is another one than before, what that one got has settled. What has settled stays so.
        """
        first = self.admissions.settles is None
        if self.admissions.begin(admission, until):
            self._all_due()
        self._publish()
        if first and self.admissions.settles is not None:
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
        self.admissions.gave(((holder.resource, each) for each, holder in holders.items()), now)
        pods = self.admissions.now.names
        self._given |= {device_id: _Given(holder, now, due, pods) for device_id, holder in holders.items()}
        self._publish()

    def settle(self, now: float, entered: Collection[Possession] | None = None) -> None:
        """If the time of the admission is over by now, and ``entered`` says nothing else, it has settled."""
        self.admissions.settle(now, entered)
        self._publish()

    def named(
        self,
        answer: PodList,
        asked: float,
        since: float = 0.0,
        asker: Admission | None = None,
        entered: Collection[Possession] | None = None,
    ) -> None:
        """The kubelet, asked at that time, names these holders; it knows of what was given ``since``.

        Asked inside an Allocate (of ``asker``) it names all that the ones before have given, but what plain
        init containers got. Otherwise an answer of ours may still be on its way until it is due. ``entered``
        has what the kubelet has entered, all of it once an admission is over; None: not known.
        """
        again = asker is self.admissions.now
        if self.admissions.named(answer.pods, inside=asker is not None) and asker is None:
            self._all_due()
        names = _names(self._given, answer)
        kept: dict[str, _Given] = {}
        for device_id, given in self._given.items():
            possession = (given.holder.resource, device_id)
            holder = answer.holders.get(device_id)
            if holder is not None and holder.resource == given.holder.resource:
                continue
            is_entered = entered is None or possession in entered
            over = asked >= given.due and device_id not in self.admissions.settling
            if again and possession in self.admissions.now.given:
                released = False
            elif len(given.pods) == 1:
                released = _gone(given.pods, answer, asker) or (over and not is_entered)
            else:
                unheard_of = (asker is not None or over) and (entered is None or not is_entered)
                released = unheard_of or (bool(given.pods) and _gone(given.pods, answer, None))
            if given.at < since or given.at >= asked or not released:
                known = names.get(given.holder.identity)
                kept[device_id] = given if known is None else given._replace(holder=_as(given.holder, known))
        self._given = kept
        self._publish()

    @property
    def presumed(self) -> Mapping[str, Holder]:
        """Who holds what has settled and was not named since it was given."""
        settling = self._marks.settling
        return {each: holder for each, holder in self._marks.given.items() if each not in settling}

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

    def _all_due(self) -> None:
        """The admission under way is over: the kubelet should name who has what it got."""
        self._given = {device_id: given._replace(due=0.0) for device_id, given in self._given.items()}

    def _publish(self) -> None:
        """Mark what is given and not named yet, and what is settling."""
        waiting = {device_id: given.holder for device_id, given in self._given.items()}
        self._mark(replace(self._marks, given=waiting, settling=self.admissions.settling))

    def _mark(self, marks: Reservations) -> None:
        self._snapshots.publish(replace(self._snapshots.now, reservations=marks))


def _gone(pods: frozenset[str], answer: PodList, asker: Admission | None) -> bool:
    """True if they have all ended, also if another pod asks under the one name."""
    return pods.isdisjoint(answer.pods) or (asker is not None and asker.name in pods)


def _names(given: Mapping[str, _Given], answer: PodList) -> dict[str, Holder]:
    """Identity → the holder that the kubelet names for one of the ids of that admission."""
    found = ((each.holder, answer.holders.get(device_id)) for device_id, each in given.items())
    return {holder.identity: named for holder, named in found if named is not None and holder.identity}


def _as(holder: Holder, named: Holder) -> Holder:
    """The holder of another id of the same pod, which the kubelet has named."""
    return replace(holder, namespace=named.namespace, pod=named.pod, identity="")
