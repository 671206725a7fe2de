# SPDX-License-Identifier: Apache-2.0
"""What this host itself uses of its functions: evidence, before anybody is advised to take one from it.

One look lists the interfaces and disks of the whole machine and finds the function above each on its real
path, through virtio, USB and SCSI alike; only then a few attributes of each are read. Never part of reading
one function: it costs as much for one as for all. May block: for a thread, with a limit outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import chardevs, consoles, disks, netdevs
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.ids import PciAddress, pci_address
from nodeagent.model.uses import FIRM, HostUse, HostUses, UseKind

_BOOT_VGA = HostUse(UseKind.DISPLAY, "boot display", "its firmware and console show there")


def look(root: Root, addresses: Iterable[PciAddress], *, closely: bool = False) -> dict[PciAddress, HostUses]:
    """The uses of each of the functions; ``closely``: which processes have devices of theirs open, too."""
    interfaces, blocks = _targets(root, netdevs.INTERFACES), _targets(root, disks.BLOCKS)
    nets, disks_of = _by_function(interfaces), _by_function(blocks)
    networks, storage = netdevs.networks(root), disks.storage(root)
    shown = _by_function(consoles.targets(root))

    def one(address: PciAddress) -> HostUses:
        names = disks.with_heads(disks_of.get(address, ()), blocks)
        seen = _joined(
            HostUses((_BOOT_VGA,) if root.text(f"{DEVICES}/{address}/boot_vga") == "1" else ()),
            netdevs.uses(root, nets[address], networks) if address in nets else _elsewhere(root, address),
            HostUses(tuple(map(consoles.use, shown.get(address, ())))),
            disks.uses(root, names, storage),
        )
        if not closely or any(use.kind in FIRM for use in seen.found):
            return seen
        return _joined(seen, disks.opened(root, names, storage), chardevs.opened(root, address))

    return {address: one(address) for address in addresses}


def _targets(root: Root, directory: str) -> dict[str, str]:
    both = ((name, root.target(f"{directory}/{name}")) for name in root.names(directory))
    return {name: target for name, target in both if target is not None}


def _by_function(targets: Mapping[str, str]) -> dict[PciAddress, list[str]]:
    """All PCI addresses on the path of each; what has none is virtual.

    Above a function are bridges, which are never bound, and where Intel's VMD has disks behind it in a PCI
    domain of its own, that controller, with which they go.
    """
    result: dict[PciAddress, list[str]] = {}
    for name, target in targets.items():
        for part in target.split("/"):
            if pci_address(part) == part:
                result.setdefault(PciAddress(part), []).append(name)
    return result


def _elsewhere(root: Root, address: PciAddress) -> HostUses:
    if not netdevs.hidden(root, f"{DEVICES}/{address}"):
        return HostUses()
    return HostUses((), ("its network interface: it is in another network namespace",))


def _joined(*parts: HostUses) -> HostUses:
    found = tuple(use for part in parts for use in part.found)
    return HostUses(found, tuple(each for part in parts for each in part.unseen))
