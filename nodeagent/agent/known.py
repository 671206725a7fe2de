# SPDX-License-Identifier: Apache-2.0
"""What is known of holders over the lives of the kubelet: its answers, what it said before, and its file.

Unknown is held. A kubelet that was just started, or has no way to its API server, names too few pods; so what
was held stays held, and the checkpoint adds what the kubelet has in its books. But who was named in this life
of the kubelet and is named no more has let go, however young it is, and whatever the file still says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nodeagent.kubelet.checkpoint import Entry
from nodeagent.model.allocation import Holder, Possession, unnamed


class Known:
    """The memory of one daemon."""

    def __init__(self) -> None:
        self._named: set[Possession] = set()  # in this life of the kubelet
        self._owners: dict[Possession, str] = {}  # the uid that the file told while they were named

    def new_kubelet(self) -> None:
        """A kubelet was started: it has not named anybody yet."""
        self._named.clear()
        self._owners.clear()

    def answered(
        self,
        answer: Mapping[str, Holder],
        before: Mapping[str, Holder],
        entries: Iterable[Entry],
        *,
        doubtful: bool,
    ) -> dict[str, Holder]:
        """Who holds what after this answer; if it is ``doubtful``, who did before may do so unnamed."""
        self._named |= {(holder.resource, device_id) for device_id, holder in answer.items()}
        remembered = {
            device_id: holder
            for device_id, holder in before.items()
            if doubtful and holder.named and (holder.resource, device_id) not in self._named
        }
        known = {device_id: _same(before.get(device_id), holder) for device_id, holder in answer.items()}
        entries = tuple(entries)
        self._learn(entries, answer)
        return self._hinted({**remembered, **known}, entries)

    def silent(self, before: Mapping[str, Holder], entries: Iterable[Entry]) -> dict[str, Holder]:
        """Who holds what without an answer: whoever did, and who is in the file."""
        return self._hinted(dict(before), tuple(entries))

    def _hinted(self, holders: dict[str, Holder], entries: Sequence[Entry]) -> dict[str, Holder]:
        """The holders with those of the file added; another device of a pod may tell its name."""
        ours = [each for each in entries if not each.device_id.isdecimal()]
        known = ((each, holders.get(each.device_id)) for each in ours)
        names = {
            each.uid: holder
            for each, holder in known
            if holder is not None and holder.named and holder.resource == each.resource
        }
        for each in ours:
            if self._owners.get((each.resource, each.device_id)) != each.uid:
                holders.setdefault(each.device_id, _of_entry(each, names.get(each.uid)))
        return holders

    def _learn(self, entries: Iterable[Entry], answer: Mapping[str, Holder]) -> None:
        """Whose entry of the file it is that the kubelet names now; once it is named no more, it is over."""
        for entry in entries:
            holder = answer.get(entry.device_id)
            if holder is not None and holder.resource == entry.resource:
                self._owners[entry.resource, entry.device_id] = entry.uid


def _of_entry(entry: Entry, named: Holder | None) -> Holder:
    """The holder of an entry: another device of its pod may have told the name."""
    if named is not None:
        return replace(named, resource=entry.resource, numa=entry.numa)
    return unnamed(entry.resource, entry.numa, f"uid {entry.uid}")


def _same(before: Holder | None, now: Holder) -> Holder:
    """The known object where it says the same: readers find by identity what has changed."""
    return before if before is not None and before == now else now
