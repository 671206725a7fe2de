# SPDX-License-Identifier: Apache-2.0
"""The names of vendors, devices and vGPU types on the host, searched in its files when first seen."""

from __future__ import annotations

from nodeagent.base import threads
from nodeagent.kernel import pciids
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host
from nodeagent.model.ids import vgpu_key
from nodeagent.model.snapshot import Names


class NameKeeper:
    """Searches for names in a thread, for the files are large, and only when there is an id that is new."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._searched: frozenset[tuple[str, str]] = frozenset()
        self._vgpus: dict[str, str] = {}

    async def names(self, host: Host, present: Names) -> Names:
        """All names for the host; ``present`` itself if there is no new id.

        A name that was known stays: a VF that gets its type lists it no more.
        :raises KernelRefused: if nothing can be read at present; then they are searched the next time.
        """
        ids = _to_name(host)
        new_vgpus = any(self._is_new(number, name) for number, name in _vgpus(host).items())
        if ids <= self._searched and not new_vgpus:
            return present
        searched, vgpus = self._searched | ids, self._vgpus
        if new_vgpus:
            from nodeagent.agent.changing import ledger  # here, as in _vgpus

            known = {number: name for number, name in vgpus.items() if name}
            vgpus = await threads.call(ledger.named, self._root, host) | known
        names = await threads.call(pciids.names, self._root, searched)
        self._searched, self._vgpus = searched, vgpus
        return {**names, **{vgpu_key(number): name for number, name in self._vgpus.items() if name}}

    def _is_new(self, number: str, name: str) -> bool:
        """True if a type was not seen before, or had no name."""
        return number not in self._vgpus or (bool(name) and not self._vgpus[number])


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
