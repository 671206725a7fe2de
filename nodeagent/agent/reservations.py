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

from nodeagent.agent.admission import NOTHING, Admission, Admissions
from nodeagent.agent.behind import Behind
from nodeagent.agent.forgotten import Forgotten
from nodeagent.agent.given import GivenIds
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint
from nodeagent.model.allocation import Holder, PodList, Possession, Reservations


class ReservationBook:
    """Writes ``reservations`` of the Snapshot. Times are those of the event loop, in seconds."""

    def __init__(self, snapshots: Snapshots, timeouts: Timeouts) -> None:
        self.began: Latest[None] = Latest(None)  # an id settles where none did: there is an end to wait for
        self.doubted: Latest[None] = Latest(None)  # the kubelet's file may tell of what is over
        self.admissions = Admissions(timeouts)
        self.given = GivenIds(self.admissions, timeouts)
        self.forgotten = Forgotten(timeouts.forgotten_container_end)
        self.behind = Behind(snapshots, timeouts.foreign_allocate)
        self._snapshots = snapshots

    def admit(self, admission: Admission, until: float) -> None:
        """This pod is being admitted: what is left of its groups is open to it until then, at the longest.

        If it is another one than before, what that one got has settled. What has settled stays so.
        """
        first = self.admissions.settles is None
        if self.admissions.begin(admission, until):
            self.given.all_due()
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
                    f"{device_id} is being removed, or is getting another driver",
                    "the kubelet's list is renewed; try the pod again",
                )
        own = ((holder.resource, each) for each, holder in holders.items() if not holder.brought)
        self.admissions.gave(own, now)
        self.given.add(holders, now, due)
        self._publish(held=holders)

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
        file: Checkpoint = NOTHING,
    ) -> None:
        """The kubelet, asked at that time, names these holders; it knows of what was given ``since``.

        Asked inside an Allocate (of ``asker``) it names all that the ones before have given, but what plain
        init containers got. Otherwise an answer of ours may still be on its way until it is due. ``file`` has
        what the kubelet has entered, all of it once an admission is over.
        """
        if self.admissions.named(answer.pods, inside=asker is not None) and asker is None:
            self.given.all_due()
        self.given.named(answer, asked, since, asker, file)
        self._publish(held=answer.holders)

    def refuse(self, ids: Collection[str]) -> None:
        """These were asked for while others of their group are held: the kubelet takes them for free.

        They are marked until the kubelet names who has them, or they are given away.
        """
        self.doubted.touch()
        self._mark(replace(self._marks, refused=self._marks.refused.union(ids)))

    @property
    def presumed(self) -> Mapping[str, Holder]:
        """Who holds what has settled and was not named since it was given."""
        settling, given = self._marks.settling, self._marks.given
        return {each: given[each] for each in given if each not in settling and not given[each].brought}

    def withdraw(self, ids: Collection[str]) -> bool:
        """Mark the ids as about to be removed; False, and no mark, if one was given a moment ago."""
        if not self.given.holders.keys().isdisjoint(ids):
            return False
        self._mark(replace(self._marks, withdrawn=self._marks.withdrawn.union(ids)))
        return True

    def restore(self, ids: Collection[str]) -> None:
        """Nothing is done to these ids any more, and the Host shows what became of them."""
        self._mark(replace(self._marks, withdrawn=self._marks.withdrawn.difference(ids)))

    @property
    def _marks(self) -> Reservations:
        return self._snapshots.now.reservations

    def _publish(self, held: Collection[str] = ()) -> None:
        """Mark what is given and not named yet, and what is settling; what is ``held`` is refused no more."""
        waiting = self.given.holders
        refused = self._marks.refused.difference(held)
        self._mark(replace(self._marks, given=waiting, settling=self.admissions.settling, refused=refused))

    def _mark(self, marks: Reservations) -> None:
        self._snapshots.publish(replace(self._snapshots.now, reservations=marks))
