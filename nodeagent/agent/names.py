# SPDX-License-Identifier: Apache-2.0
"""The names of vendors, devices and vGPU types on the host, searched in its files when first seen.

A name that was found stays for the life of the process, whatever becomes of the files. What was in force in
the life before is on disk: where the files say something else now, the old name counts until it is known
who holds what, and then ``policy.offer.renames`` decides once and for all. A type of vGPUs that has no name
is looked up again when the files that could tell it are others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import anyio

from nodeagent.agent import names_record
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.kernel import pciids
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host
from nodeagent.model.ids import is_vgpu_key, vgpu_key
from nodeagent.model.snapshot import Names, Snapshot
from nodeagent.model.status import NamesStatus, Rename, Status

_KEEP = "to keep the old one, write: aliases: {%s}"


class NameKeeper:
    """Searches in a thread, for the files are large, and only for an id that is new."""

    name = "names"

    def __init__(self, root: Root, snapshots: Snapshots, again: float, chosen: str = "") -> None:
        """``chosen``: the operator's own pci.ids, "" for none; ``again``: seconds from a refusal to a try."""
        self._root = root
        self._snapshots = snapshots
        self._chosen = chosen
        self._again = again
        self._searched: frozenset[tuple[str, str]] = frozenset()
        self._types = TypeNames(root)
        self._record = names_record.Record(root.path(names_record.PATH))
        self._contested: dict[str, str | None] = {}  # what the files say now, and the record does not
        self._settled = False
        self._status = NamesStatus()

    def report(self, status: Status) -> Status:
        """Which names changed, or would have."""
        return status._replace(names=self._status)

    async def run(self) -> None:
        """Put on disk what is in force, whenever that has changed, and again after a refusal, for ever."""
        self._status = self._status._replace(bundled=await threads.call(pciids.bundled_date))
        while True:
            seen = self._snapshots.version
            if await self.one_turn():
                await self._snapshots.newer(seen)
            else:
                await anyio.sleep(self._again)

    async def one_turn(self) -> bool:
        """Put on disk what is in force, if it is not there; False if that is refused."""
        return await self._record.save(self._snapshots.now.names)

    async def names(self, host: Host, present: Names) -> Names:
        """All names for the host; ``present`` itself if there is no new id.

        What was searched counts as that only when all of it could be: else it is searched the next time.
        """
        ids = _to_name(host) - self._searched
        found = {**(await self._pci_texts(ids) if ids else {}), **await self._types.new(host)}
        self._searched |= ids
        if not found:
            return present
        before = await self._record.before(found)
        # a type that nobody names any more has the name that it had
        found |= {key: text for key, text in before.items() if found[key] is None and is_vgpu_key(key)}
        self._contested |= {key: found[key] for key in before if found[key] != before[key]}
        names = {key: text for key, text in {**present, **found, **before}.items() if text is not None}
        return self._decided(replace(self._snapshots.now, host=host, names=names)) if self._settled else names

    def settle(self) -> None:
        """It is known now who holds what, as far as it is told at all: decide on what the record says."""
        self._settled = True
        now = self._snapshots.now
        self._snapshots.publish(replace(now, names=self._decided(now)))

    def _decided(self, snapshot: Snapshot) -> Names:
        if not self._contested:
            return snapshot.names
        from nodeagent.policy.offer import renames  # here: hardly a start has anything to decide

        decided = renames.decide(snapshot, self._contested)
        self._contested = {}
        for rename in decided.changed:
            log.event(log.NAME_CHANGED, resource=rename.old, name=rename.new, hint=_KEEP % rename.alias)
        for rename in decided.kept:
            log.event(log.NAME_KEPT, resource=rename.old, name=rename.new, hint=_KEEP % rename.alias)
        self._status = self._status._replace(
            changed=_joined(self._status.changed, decided.changed),
            kept=_joined(self._status.kept, decided.kept),
        )
        return decided.names

    async def _pci_texts(self, new: frozenset[tuple[str, str]]) -> dict[str, str | None]:
        """The texts of ids that are new; a vendor that was looked up is not looked up again."""
        vendors = {vendor for vendor, _ in self._searched}
        texts = await threads.call(pciids.names, self._root, new, self._chosen)
        keys = {key for vendor, device in new for key in (vendor, f"{vendor}:{device}")} - vendors
        return {key: texts.get(key) for key in sorted(keys)}


class TypeNames:
    """The names of vGPU types: what VFs list, or the vGPU manager's files say."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._names: dict[str, str] = {}  # by number; "": none yet
        self._marks: object = None  # of the files when they were read

    async def new(self, host: Host) -> dict[str, str | None]:
        """The types that are new, or have got a name; None: it has none."""
        shown = _vgpus(host)
        if not shown or all(self._names.get(number) for number in shown):
            return {}
        found = await threads.call(self._look_up, host, shown)
        new = {
            number: name
            for number, name in found.items()
            if number not in self._names or (name and not self._names[number])
        }
        self._names |= new
        return {vgpu_key(number): name or None for number, name in new.items()}

    def _look_up(self, host: Host, shown: Mapping[str, str]) -> dict[str, str]:
        from nodeagent.agent.changing import ledger  # here, as in _vgpus
        from nodeagent.kernel.scan import vgpus

        marks = vgpus.marks(self._root)
        listed = any(name and not self._names.get(number) for number, name in shown.items())
        if self._names.keys() >= shown.keys() and marks == self._marks and not listed:
            return {}
        named = ledger.named(self._root, host)
        self._marks = marks
        return named


def _vgpus(host: Host) -> dict[str, str]:
    """Number → name of the vGPU types that the host shows; "" where it shows the number only."""
    if not any(function.vgpu for function in host.functions.values()):
        return {}
    from nodeagent.kernel.scan import vgpus  # here: few nodes have NVIDIA's vGPUs

    return vgpus.seen(host)


def _to_name(host: Host) -> frozenset[tuple[str, str]]:
    """Vendor and device of what may be offered, and of the parents of mdevs."""
    parents = {mdev.parent for mdev in host.mdevs.values()}
    return frozenset(
        (function.vendor, function.device)
        for function in host.functions.values()
        if (function.vfio or function.vgpu or function.address in parents)
        and function.vendor
        and function.device
    )


def _joined(before: tuple[Rename, ...], new: tuple[Rename, ...]) -> tuple[Rename, ...]:
    return tuple(dict.fromkeys((*before, *new)))
