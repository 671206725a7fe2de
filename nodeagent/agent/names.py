# SPDX-License-Identifier: Apache-2.0
"""The names of vendors, devices and vGPU types on the host, searched in its files when first seen.

A name stays for the life of the process, whatever becomes of the files. A vGPU type that has no name is
looked up again when the files that could name it have changed. ``observe`` asks with each scan.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.base import threads
from nodeagent.kernel import pci_ids
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host
from nodeagent.model.ids import vgpu_key
from nodeagent.model.snapshot import Names


class NameKeeper:
    """Searches in a thread, for the files are large, and only for an id that is new."""

    def __init__(self, root: Root, chosen: str = "") -> None:
        """``chosen``: the operator's own pci.ids, "" for none."""
        self._root = root
        self._chosen = chosen
        self._searched: frozenset[tuple[str, str]] = frozenset()
        self._types = TypeNames(root)
        self.bundled = ""  # the day of the bundled pci.ids

    async def read_day(self) -> None:
        """Read the day of the bundled pci.ids."""
        self.bundled = await threads.call(pci_ids.bundled_date)

    async def names(self, host: Host, present: Names) -> Names:
        """All names for the host; ``present`` itself if there is no new one.

        An id counts as searched only when all ids could be: else they are searched the next time.
        """
        ids = _to_name(host) - self._searched
        found = {**(await self._pci_texts(ids) if ids else {}), **await self._types.new(host)}
        self._searched |= ids
        return {**present, **found} if found else present

    async def _pci_texts(self, new: frozenset[tuple[str, str]]) -> dict[str, str]:
        """The texts of ids that are new; a vendor that was looked up is not looked up again."""
        vendors = {vendor for vendor, _ in self._searched}
        texts = await threads.call(pci_ids.names, self._root, new, self._chosen)
        return {key: texts[key] for key in sorted(texts.keys() - vendors)}


class TypeNames:
    """The names of vGPU types: what VFs list, or the vGPU manager's files say."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._names: dict[str, str] = {}  # by number; "": none yet
        self._marks: object = None  # of the files when they were read

    async def new(self, host: Host) -> dict[str, str]:
        """The names of types that are new, or that have got one."""
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
        return {vgpu_key(number): name for number, name in new.items() if name}

    def _look_up(self, host: Host, shown: Mapping[str, str]) -> dict[str, str]:
        from nodeagent.agent.changing import ledger  # here, as in _vgpus
        from nodeagent.kernel.scan import nvidia

        marks = nvidia.read_stamps(self._root)
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
    from nodeagent.kernel.scan import nvidia  # here: few nodes have NVIDIA's vGPUs

    return nvidia.find_vgpu_types(host)


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
