# SPDX-License-Identifier: Apache-2.0
"""What is known of holders over the lives of the kubelet: its answers, what it said before, and its file.

Unknown is held. A kubelet that was just started, or has no way to its API server, names too few pods; so what
was held stays held, and its checkpoint adds what the kubelet has given away. But who was named in this life
of the kubelet and is named no more has let go, however young it is, and whatever the file still says.

The file is written at allocations and at lists, not when a pod ends. So an entry whose pod is not named
proves something only if the file was written after an answer without it: an answer frees what is over. Until
that was seen once in a life of the kubelet, every entry counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import compress
from operator import attrgetter, is_not
from typing import NamedTuple, TypeVar

from nodeagent.kubelet.checkpoint import Checkpoint, Entry, Stamp
from nodeagent.model.allocation import Allocations, ByPossession, Holder, Possession, unnamed
from nodeagent.model.ids import GroupNumber, ResourceName

T = TypeVar("T")

_RESOURCE = attrgetter("resource")
_POSSESSION = attrgetter("resource", "device_id")
NOBODY: ByPossession[Holder] = {}


class _Answers:
    """What came with ids that are held, gathered from the file."""

    def __init__(self) -> None:
        self.brought: dict[str, Holder] = {}
        self.groups: dict[str, frozenset[GroupNumber]] = {}
        self.nodes: dict[ResourceName, dict[str, tuple[str, ...]]] = {}
        self.cdi: dict[ResourceName, dict[str, tuple[str, ...]]] = {}

    def add(self, entry: Entry, holder: Holder, holders: Mapping[str, Holder]) -> None:
        """What came with the id of this entry, which its holder has."""
        device_id, answer = entry.device_id, entry.answer
        known = self.groups.get(device_id)
        self.groups[device_id] = known | answer.groups if known else answer.groups
        for table, given in ((self.nodes, answer.nodes), (self.cdi, answer.cdi)):
            if given:
                ids = table.setdefault(entry.resource, {})
                ids[device_id] = (*ids.get(device_id, ()), *given)
        for host_device in answer.host_devices:
            if host_device not in holders:
                self.brought[host_device] = replace(holder, brought=device_id)


class _Owner(NamedTuple):
    """Whose the entry of a possession is, by uid; and the last file that had it when he had let go."""

    uid: str
    gone: Stamp | None = None


class Known:
    """The memory of one daemon."""

    def __init__(self) -> None:
        self.hinted: frozenset[Possession] = frozenset()  # the file names whom the kubelet did not
        self.begun: frozenset[str] = frozenset()  # uids of pods that were started, until they are forgotten
        self._told: Mapping[str, Holder] = {}  # last, in this life of the kubelet, as all that follows
        self._named: set[Possession] = set()  # by any answer, or struck from the file
        self._owners: dict[Possession, _Owner] = {}  # whom the file told while they were named
        self._unnamed: dict[Entry, Stamp | None] = {}  # and the file that had them first
        self._first: Stamp | None = None  # the first file that could be read
        self._trusted = False  # the file was written after an answer
        self._beside: list[tuple[str, Holder]] = []  # who may be a namesake of what was told last
        self._newest = Allocations()  # with answers: readers find by identity what has changed

    def new_kubelet(self) -> None:
        """A kubelet was started: it has not named anybody yet."""
        self._told = {}
        self._named.clear()
        self._owners.clear()
        self._unnamed.clear()
        self._first, self._trusted = None, False

    def answered(
        self,
        answer: Mapping[str, Holder],
        before: Mapping[str, Holder],
        checkpoint: Checkpoint,
        *,
        doubtful: bool,
        ours: Collection[Possession] = (),
        namesakes: ByPossession[Holder] = NOBODY,
    ) -> Mapping[str, Holder]:
        """Who holds what after this answer; if it is ``doubtful``, who did before may do so unnamed.

        ``ours`` was given by this daemon to pods of this kubelet: of that the reservations know more.
        """
        self._learn(answer, namesakes, checkpoint)
        self._beside = _listed(namesakes)
        hints = [
            each
            for each in self._unnamed
            if (each.resource, each.device_id) not in ours
            and (doubtful or not self._trusted or self._unnamed[each] != checkpoint.written)
        ]
        differing = list(_others(answer, before))
        if not differing and not hints and len(before) == len(answer):
            return before
        known = {each: _same(before[each], answer[each]) for each in differing if each in before}
        gone = before.keys() - answer.keys() if doubtful else ()
        remembered = {each: before[each] for each in gone if self._may_go_on(each, before[each])}
        return self._with_hints({**remembered, **answer, **known}, checkpoint, hints)

    def silent(self, before: Mapping[str, Holder], checkpoint: Checkpoint) -> dict[str, Holder]:
        """Who holds what without an answer: whoever did, and who is in the file."""
        self._beside = _listed(self._newest.namesakes)
        hints = [each for each in checkpoint.entries if self._may_hold(each)]
        return self._with_hints(dict(before), checkpoint, hints)

    def with_answers(self, allocations: Allocations, checkpoint: Checkpoint) -> Allocations:
        """With what came with the ids that are held, as the file has it, and with whom ``holders`` hides."""
        allocations = replace(allocations, namesakes=self._namesakes(allocations.holders))
        found, last = _Answers(), self._newest
        entries = [each for each in checkpoint.entries if not self._is_over(each, checkpoint)]
        for entry in entries:
            holder = allocations.holder_of(entry.resource, entry.device_id)
            if holder is not None:
                found.add(entry, holder, allocations.holders)
        self._newest = replace(
            allocations,
            written=None if checkpoint.written is None else frozenset(map(_POSSESSION, entries)),
            brought=_same(last.brought, found.brought),
            groups=_same(last.groups, found.groups),
            nodes=_same(last.nodes, found.nodes),
            cdi=_same(last.cdi, found.cdi),
        )
        return self._newest

    def _namesakes(self, holders: Mapping[str, Holder]) -> ByPossession[Holder]:
        """Who holds an id by which ``holders`` has somebody of another resource.

        The kubelet says so, or its file; or somebody took the id of whom the kubelet had not named.
        """
        hidden = [(each, self._told[each]) for each in _others(holders, self._told) if each in self._told]
        found: dict[ResourceName, dict[str, Holder]] = {}
        for device_id, holder in (*self._beside, *hidden):
            if holders.get(device_id, holder).resource != holder.resource:
                found.setdefault(holder.resource, {})[device_id] = holder
        return _same(self._newest.namesakes, found)

    def _with_hints(
        self, holders: dict[str, Holder], checkpoint: Checkpoint, hints: Collection[Entry]
    ) -> dict[str, Holder]:
        """The holders with those of the hints added, or beside them where another has the id."""
        hinted = _of_hints(holders, checkpoint, hints) if hints else []
        self._beside += hinted
        for device_id, holder in hinted:
            holders.setdefault(device_id, holder)
        return holders

    def _learn(
        self, answer: Mapping[str, Holder], namesakes: ByPossession[Holder], checkpoint: Checkpoint
    ) -> None:
        """Note who is named, whose entries these are, and which entries nobody is named for."""
        self.begun = checkpoint.admitted or frozenset()
        told, self._told = self._told, answer
        if answer is not told:
            new = list(_others(answer, told))
            self._named.update(zip(map(_RESOURCE, map(answer.get, new)), new, strict=True))
        self._named.update((name, each) for name, ids in namesakes.items() for each in ids)
        unnamed_entries: dict[Entry, Stamp | None] = {}
        for entry in checkpoint.entries:
            named = _names(answer, entry) or entry.device_id in namesakes.get(entry.resource, {})
            if named or not self._may_hold(entry):
                gone = not named or _others_now(entry, told, answer)
                self._note_owner(entry, checkpoint.written, gone=gone)
            else:
                unnamed_entries[entry] = self._unnamed.get(entry, checkpoint.written)
        # what the kubelet has struck from its checkpoint has let go, too
        before = {(entry.resource, entry.device_id) for entry in self._unnamed}
        if checkpoint.written is not None:
            self._named |= before - checkpoint.of({entry.device_id for entry in self._unnamed})
        self._unnamed = unnamed_entries
        self.hinted = frozenset((entry.resource, entry.device_id) for entry in unnamed_entries)
        if checkpoint.written is not None:
            self._first = self._first or checkpoint.written
            self._trusted = self._trusted or not self.hinted or self._first != checkpoint.written

    def _may_go_on(self, device_id: str, holder: Holder) -> bool:
        """False for whom this kubelet has named, and names no more."""
        return holder.named and (holder.resource, device_id) not in self._named

    def _may_hold(self, entry: Entry) -> bool:
        """False for what is over."""
        owner = self._owners.get((entry.resource, entry.device_id))
        return owner is None or owner.uid != entry.uid

    def _note_owner(self, entry: Entry, written: Stamp | None, *, gone: bool) -> None:
        """Whose entry this is; ``gone``: he does not have it any more, and it is in the file of then."""
        possession = entry.resource, entry.device_id
        if self._may_hold(entry):
            self._owners[possession] = _Owner(entry.uid)
        elif gone:
            self._owners[possession] = _Owner(entry.uid, written)

    def _is_over(self, entry: Entry, checkpoint: Checkpoint) -> bool:
        """True for what is left of somebody who has let go: who has it by now is entered later."""
        owner = self._owners.get((entry.resource, entry.device_id))
        return owner is not None and owner == (entry.uid, checkpoint.written)


def _of_hints(
    holders: Mapping[str, Holder], checkpoint: Checkpoint, hints: Collection[Entry]
) -> list[tuple[str, Holder]]:
    """The id of each hint, and who has it; another device of a pod may tell its name."""
    named = (entry for entry in checkpoint.entries if _names(holders, entry))
    names = {entry.uid: holders[entry.device_id] for entry in named}
    return [(entry.device_id, _of_entry(entry, names.get(entry.uid))) for entry in hints]


def _others_now(entry: Entry, told: Mapping[str, Holder], answer: Mapping[str, Holder]) -> bool:
    """True if another pod has it than in the answer before; its id of another resource says nothing."""
    before, now = told.get(entry.device_id), answer.get(entry.device_id)
    if before is now or before is None or now is None:
        return False
    return before.resource == now.resource == entry.resource and not now.is_with(before)


def _listed(namesakes: ByPossession[Holder]) -> list[tuple[str, Holder]]:
    return [each for ids in namesakes.values() for each in ids.items()]


def _names(holders: Mapping[str, Holder], entry: Entry) -> bool:
    holder = holders.get(entry.device_id)
    return holder is not None and holder.resource == entry.resource and holder.named


def _of_entry(entry: Entry, named: Holder | None) -> Holder:
    if named is not None:
        return replace(named, resource=entry.resource, numa=entry.numa)
    return unnamed(entry.resource, entry.numa, f"uid {entry.uid}")


def _others(now: Mapping[str, Holder], before: Mapping[str, Holder]) -> Iterator[str]:
    """The ids whose Holder is another object than before; there may be many, and the loop waits."""
    return compress(now, map(is_not, map(before.get, now), now.values()))


def _same(before: T, now: T) -> T:
    """The known object where it says the same: readers find by identity what has changed."""
    return before if before == now else now
