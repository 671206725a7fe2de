# SPDX-License-Identifier: Apache-2.0
"""What is new between one Status and the next, as Notices. Pure; time is an argument.

What stands already at the first look is not new: a daemon that starts has nothing to tell of a node that is
as it was. But a device that broke while the node was down is seen by nobody else, so what needs a person and
still stands after a moment is told then. A daemon that ends before that, again and again, tells nothing; and
one that has told it before finds its own Events by their names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from nodeagent.agent.cluster import facts, reasons
from nodeagent.agent.cluster.facts import Facts, Key
from nodeagent.agent.cluster.reasons import Notice
from nodeagent.model.ids import pci_address
from nodeagent.model.status import CardStatus, ChangesStatus, Status

FEW = 3  # notices of one reason that are told one by one
MAKES = frozenset(
    {"create-mdev", "set-vgpu-type"}
)  # of model.action, which only nodes load that change things
REMOVES = frozenset({"remove-mdev", "clear-vgpu-type"})
_MORE = "nodeagent status on the node lists all of them, with what to do"


class Notices:
    """The memory between two looks. ``settled``: seconds until what stood at the first is told."""

    def __init__(self, settled: float) -> None:
        self._settled = settled
        self._before: Status | None = None
        self._quiet: ChangesStatus | None = None  # as it was when nothing was under way
        self._standing: Facts = {}
        self._due = math.inf

    @property
    def due(self) -> float:
        """When there is to be a look in any case: a time of the same clock."""
        return self._due if self._standing else math.inf

    def of(self, status: Status, now: float) -> list[Notice]:
        """What is to be told of this Status, at this time in seconds."""
        before, self._before = self._before, status
        if before is None:
            found = facts.facts(status)
            self._standing = {key: notice for key, notice in found.items() if notice.reason.warning}
            self._due, self._quiet = now + self._settled, status.changes
            return []
        new = [*notices(before, status), *self._made(status.changes), *self._still(status, now)]
        return folded(new)

    def _made(self, changes: ChangesStatus) -> list[Notice]:
        """One notice for all that is made of a card at a time; what none shows yet is told when one does."""
        if changes.under_way or self._quiet is None:
            return []
        found = made(self._quiet, changes)
        if found or _counts(self._quiet) == _counts(changes):
            self._quiet = changes
        return found

    def _still(self, status: Status, now: float) -> list[Notice]:
        if now < self.due:
            return []
        standing, self._standing = self._standing, {}
        present = facts.facts(status)
        still = ((notice, present.get(key)) for key, notice in standing.items())
        return [now for before, now in still if now is not None and now.fact == before.fact]


def notices(before: Status, now: Status) -> list[Notice]:
    """What stands now and did not, or says something else; what is over; what has gone."""
    old, new = facts.facts(before), facts.facts(now)
    told = {key: notice.fact for key, notice in old.items()}
    begun = [notice for key, notice in new.items() if told.get(key) != notice.fact]
    over = (notice for key in old if key not in new for notice in _over(key, now))
    return [*begun, *over, *_gone(before, now), *_taken(before, now)]


def made(before: ChangesStatus, now: ChangesStatus) -> list[Notice]:
    """What nodeagent has made on cards and removed from them."""
    found: list[Notice] = []
    if _count(now, REMOVES) > _count(before, REMOVES):
        gone = _differences(now.cards, before.cards)
        found += (
            Notice(reasons.MDEV_REMOVED, f"{card}: {number} x {type_} removed")
            for card, type_, number in gone
        )
    if _count(now, MAKES) > _count(before, MAKES):
        more = _differences(before.cards, now.cards)
        found += (
            Notice(reasons.MDEV_CREATED, f"{card}: {number} x {type_} made") for card, type_, number in more
        )
    return found


def folded(given: Iterable[Notice]) -> list[Notice]:
    """Of more than a few of one reason, about the Node or about one pod, one that names the first."""
    by_reason: dict[tuple[str, str], list[Notice]] = {}
    for notice in dict.fromkeys(given):
        by_reason.setdefault((notice.reason.name, notice.pod), []).append(notice)
    return [notice for several in by_reason.values() for notice in _folded(several)]


def _folded(several: list[Notice]) -> list[Notice]:
    if len(several) <= FEW:
        return several
    named = "; ".join(notice.what for notice in several[:FEW])
    first = several[0]
    return [
        first._replace(
            what=f"{named}; and {len(several) - FEW} more", do=_MORE if first.reason.warning else ""
        )
    ]


def _over(key: Key, now: Status) -> Iterator[Notice]:
    """That what stood is over, where that can be said."""
    if key[0] == facts.CONFIGURATION:
        yield Notice(reasons.CONFIGURATION_ACCEPTED, "the configuration is right again")
    if key[0] not in (facts.DEVICE, facts.ON_POD):
        return
    _, resource, device_id, *pod = key
    has = facts.holder(resource, device_id, now)
    if pod and (has is None or has.pod != pod[0]):
        return  # it has ended
    listed = [each for each in now.resources if each.name == resource]
    for device in (device for each in listed for device in each.devices if device.id == device_id):
        state = "is Healthy" if device.healthy else f"can be given again later: {device.what}"
        yield Notice(reasons.DEVICE_HEALTHY, f"{resource}: {device_id} {state}", pod="".join(pod))


def _gone(before: Status, now: Status) -> Iterator[Notice]:
    """Functions that no resource lists any more; of mdevs it is told what was removed."""
    listed = {device.id for resource in now.resources for device in resource.devices}
    for resource in before.resources:
        for device in resource.devices:
            if device.id not in listed and pci_address(device.id) is not None:
                yield Notice(reasons.DEVICE_GONE, f"{resource.name}: {device.id} is no longer listed")


def _taken(before: Status, now: Status) -> Iterator[Notice]:
    """Resources that the Node counts no more, since we have seen to that."""
    for name in now.cluster.stale_removed:
        if name not in before.cluster.stale_removed:
            yield Notice(reasons.STALE_REMOVED, f"{name}: the Node counted it as 0, and nobody gave it")


def _counts(changes: ChangesStatus) -> tuple[int, int]:
    return _count(changes, MAKES), _count(changes, REMOVES)


def _count(changes: ChangesStatus, kinds: frozenset[str]) -> int:
    return sum(result.made for result in changes.results if result.kind in kinds)


def _differences(fewer: Iterable[CardStatus], more: Iterable[CardStatus]) -> Iterator[tuple[str, str, int]]:
    """Card, type, and how many more there are."""
    known = {(card.card, card.type): card.instances for card in fewer}
    for card in more:
        number = card.instances - known.get((card.card, card.type), 0)
        if number > 0 and card.type is not None:
            yield card.card, card.type, number
