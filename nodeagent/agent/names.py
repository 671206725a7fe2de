# SPDX-License-Identifier: Apache-2.0
"""The names of vendors, devices and vGPU types; each name is looked up when its id first appears.

A name does not change while the process runs, even if the files change. A vGPU type without a name is looked
up again when the files that could name it have changed. ``agent.observe`` calls this module with each scan.
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
    """Looks up names of new ids in a thread, because the files are large."""

    def __init__(self, root: Root, chosen: str = "") -> None:
        """``chosen``: the path of the operator's own pci.ids; "" for none."""
        self._root = root
        self._chosen = chosen
        self._searched: frozenset[tuple[str, str]] = frozenset()
        self._types = TypeNames(root)
        self.bundled = ""  # the date of the bundled pci.ids

    async def read_day(self) -> None:
        """Read the date of the bundled pci.ids."""
        self.bundled = await threads.call(pci_ids.bundled_date)

    async def names(self, host: Host, present: Names) -> Names:
        """All names for the host; the object ``present`` itself if no name is new.

        If a lookup fails, all new ids are looked up again the next time.
        """
        ids = _to_name(host) - self._searched
        found = {**(await self._pci_texts(ids) if ids else {}), **await self._types.new(host)}
        self._searched |= ids
        return {**present, **found} if found else present

    async def _pci_texts(self, new: frozenset[tuple[str, str]]) -> dict[str, str]:
        """The names of new ids, without vendors whose names were looked up before."""
        vendors = {vendor for vendor, _ in self._searched}
        texts = await threads.call(pci_ids.names, self._root, new, self._chosen)
        return {key: texts[key] for key in sorted(texts.keys() - vendors)}


class TypeNames:
    """The names of vGPU types, from the VFs' lists or the files of NVIDIA's vGPU manager."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._names: dict[str, str] = {}  # by number; "": no name yet
        self._marks: object = None  # the stamps of the files when they were read

    async def new(self, host: Host) -> dict[str, str]:
        """The names of vGPU types that are new, or that had no name before."""
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
    """The names of the vGPU types on the host, by number; "" if the host shows only the number."""
    if not any(function.vgpu for function in host.functions.values()):
        return {}
    from nodeagent.kernel.scan import nvidia  # here: few nodes have NVIDIA's vGPUs

    return nvidia.find_vgpu_types(host)


def _to_name(host: Host) -> frozenset[tuple[str, str]]:
    """Vendor and device ids of functions that may be offered, and of parents of mdevs."""
    parents = {mdev.parent for mdev in host.mdevs.values()}
    return frozenset(
        (function.vendor, function.device)
        for function in host.functions.values()
        if (function.vfio or function.vgpu or function.address in parents)
        and function.vendor
        and function.device
    )
