# SPDX-License-Identifier: Apache-2.0
"""What Allocates gave away and the kubelet has not named since: who has it until then, and when it is over.

Knows what one answer of the kubelet says of each of them. Times are those of the event loop, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from nodeagent.agent.admission import NOTHING, Admission, Admissions
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint
from nodeagent.model.allocation import Holder, PodList, Possession, unnamed

_Shown = Mapping[Possession, Sequence[str]]
"""What was given and is named → the pods that the kubelet names with it."""


class _Given(NamedTuple):
    """Who holds an id until the kubelet names it, when it was given, and when the kubelet should name it."""

    holder: Holder
    at: float
    due: float
    pods: frozenset[str] = frozenset()  # the names of whom one has it
    missed_by: float | None = None  # when the first file was there that should have had it, and did not
    struck: bool = False  # one that was written well after it has not got it either
    overdue: bool = False  # the kubelet should have named who has it

    def looked_up(self, file: Checkpoint, gap: float, *, missing: bool, due: bool) -> _Given:
        """The same, with what the kubelet's file says of it; ``due``: it should be entered by now.

        One file is not enough, nor are some that were written at the same time: the older may be the last.
        Of a kubelet that has ended the file has all that containers were started with. One that has it may
        have it of the pod before: nothing is written when a pod ends, nor when an Allocate fails.
        """
        given = self._replace(overdue=self.overdue or due)
        if not missing:
            return given._replace(missed_by=None, struck=False)
        if self.missed_by is None:
            return given._replace(missed_by=file.by) if due else given
        return given._replace(struck=self.struck or file.well_after(self.missed_by, gap))


class GivenIds:
    """All of them, by id."""

    def __init__(self, admissions: Admissions, timeouts: Timeouts) -> None:
        self._admissions = admissions
        self._timeouts = timeouts
        self._given: dict[str, _Given] = {}

    @property
    def holders(self) -> dict[str, Holder]:
        """Who has them."""
        return {device_id: given.holder for device_id, given in self._given.items()}

    @property
    def overdue(self) -> frozenset[Possession]:
        """With what nobody is named, who should be: the next file of the kubelet decides."""
        waiting = {each: given for each, given in self._given.items() if given.overdue and not given.struck}
        return frozenset((given.holder.resource, each) for each, given in waiting.items())

    def beside(self, admission: Admission) -> dict[str, Holder]:
        """What this kubelet has given to other pods than the one of the admission.

        What they have let go of since is not among it, if the kubelet was asked meanwhile. But nobody shows
        what plain init containers have: the kubelet's file decides, which is not written when a pod ends.
        """
        others = self._admissions.ours.keys() - admission.given
        return {each: holder for each, holder in self.holders.items() if (holder.resource, each) in others}

    def missed(self, admission: Admission) -> dict[str, Holder]:
        """Of that, what one of the kubelet's files lacked: the next one decides."""
        beside = self.beside(admission)
        return {each: beside[each] for each in beside if self._given[each].missed_by is not None}

    def to_others(self, admission: Admission) -> dict[str, Holder]:
        """Of what is beside it, what the one that asks cannot have: a pod may ask for what it has."""
        beside = self.beside(admission)
        return {each: beside[each] for each in beside if not _alone(self._given[each].pods, admission)}

    def since(self, began: float, held: Mapping[str, Holder]) -> dict[str, Holder]:
        """What was given after that time; whom the kubelet has named with it since is among the ``held``."""
        known = {**held, **self.holders}
        lately = (each for each, at in self._admissions.ours.items() if at > began)
        return {device_id: known.get(device_id, unnamed(name, None)) for name, device_id in lately}

    def add(self, holders: Mapping[str, Holder], now: float, due: float) -> None:
        """The pod that is being admitted was given these; by ``due`` the kubelet should name it with them.

        Where it names nobody, only its file will tell, and not before the container has all that it wants.
        What came with one of them to the pod before was that one's.
        """
        pods = self._admissions.now.names
        if self._admissions.now.pods is None:
            due = max(due, now + self._timeouts.foreign_allocate)
        stays = {each: given for each, given in self._given.items() if not _is_over(given.holder, holders)}
        added = {device_id: _Given(holder, now, due, pods) for device_id, holder in holders.items()}
        self._given = stays | added

    def all_due(self) -> None:
        """The admission under way is over: the kubelet should name who has what it got.

        One that nobody was known to ask for may go on under another one.
        """
        for device_id, given in self._given.items():
            if given.pods:
                self._given[device_id] = given._replace(due=0.0)

    def named(
        self, answer: PodList, asked: float, since: float, asker: Admission | None, file: Checkpoint = NOTHING
    ) -> None:
        """Forget what the kubelet names, and what is over, by its answer to a question of that time.

        What came with an id is never named: it goes with that.
        """
        shown = _showing(self._given, answer)
        names, entered = _names(self._given, shown), file.of(self._given.keys())
        kept: dict[str, _Given] = {}
        for device_id, before in self._given.items():
            if before.holder.brought or _possession(device_id, before.holder) in shown:
                continue
            over = before.at < asked and self._over(device_id, before, asked, asker)
            missing = file.written is not None and (before.holder.resource, device_id) not in entered
            given = before.looked_up(file, self._timeouts.checkpoint_write_gap, missing=missing, due=over)
            doubted = given.at < since and not given.struck
            if doubted or given.at >= asked or not self._released(given, over, answer, asker, file):
                kept[device_id] = given
        for device_id, given in self._given.items():
            by = given.holder.brought
            if by and (by in kept or _possession(by, given.holder) in shown):
                kept[device_id] = given
        self._given = {device_id: _with_name(given, names) for device_id, given in kept.items()}

    def _over(self, device_id: str, given: _Given, asked: float, asker: Admission | None) -> bool:
        """True if the admission of whoever got an id that nobody is named with is over."""
        now = self._admissions.now
        if asker is now:
            return (given.holder.resource, device_id) not in now.given
        # the one before is over, if the kubelet was heard then: else it may be the one that asks now
        another = asker is not None and now.pods is not None
        return another or (asked >= given.due and device_id not in self._admissions.settling)

    def _released(
        self,
        given: _Given,
        over: bool,
        answer: PodList,
        asker: Admission | None,
        file: Checkpoint,
    ) -> bool:
        """True if whoever got an id that nobody is named with has let go of it."""
        if asker is self._admissions.now and not over:
            return False
        if len(given.pods) == 1:
            return _gone(given.pods, answer, asker) or (over and given.struck)
        unheard_of = over and (given.struck or file.written is None)
        return unheard_of or (bool(given.pods) and _gone(given.pods, answer, None))


def _alone(pods: frozenset[str], admission: Admission) -> bool:
    """True if only the pod that has it can be the one that asks."""
    return len(pods) == 1 and admission.askers == pods


def _gone(pods: frozenset[str], answer: PodList, asker: Admission | None) -> bool:
    """True if they have all ended, also if another pod asks that has come under the one name."""
    return pods.isdisjoint(answer.pods) or (asker is not None and asker.came in pods)


def _names(given: Mapping[str, _Given], shown: _Shown) -> dict[str, str]:
    """Identity → the pod that the kubelet names for one of the ids of that admission."""
    waiting = [(device_id, each.holder) for device_id, each in given.items() if each.holder.identity]
    return {
        holder.identity: pod
        for device_id, holder in waiting
        for pod in shown.get(_possession(device_id, holder), ())
    }


def _is_over(holder: Holder, now: Mapping[str, Holder]) -> bool:
    """True if what brought this to its holder is another pod's now."""
    by = now.get(holder.brought)
    return by is not None and not by.is_with(holder)


def _showing(given: Mapping[str, _Given], answer: PodList) -> _Shown:
    """Under the resource under which it was given: another plugin may have given the same id of its own."""
    ids = ((each, got.holder) for own, got in given.items() for each in {own, got.holder.got(own)})
    wanted = frozenset(_possession(device_id, holder) for device_id, holder in ids)
    shown: dict[Possession, list[str]] = {}
    for pod, possessions in answer.pods.items():
        for each in possessions & wanted:
            shown.setdefault(each, []).append(pod)
    return shown


def _possession(device_id: str, holder: Holder) -> Possession:
    return holder.resource, device_id


def _with_name(given: _Given, names: Mapping[str, str]) -> _Given:
    """The same, with the name of its pod if the kubelet has named that for another id."""
    if given.holder.identity not in names:
        return given
    namespace, name = names[given.holder.identity].split("/", 1)
    return given._replace(holder=replace(given.holder, namespace=namespace, pod=name, identity=""))
