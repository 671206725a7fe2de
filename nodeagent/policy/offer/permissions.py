# SPDX-License-Identifier: Apache-2.0
"""What the KubeVirt CR lets a virtual machine ask for, and whether it means what this node offers. Pure.

As virt-controller and virt-api check it (pkg/virt-controller/services/renderresources.go in KubeVirt, and the
webhook for VirtualMachineInstances), with their words: so whoever has seen the error finds it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.model.host import HostDevice, Kind, Mdev, PciFunction, UsbDevice
from nodeagent.model.ids import vgpu_key
from nodeagent.model.kubevirt import HOST_DEVICES, DeviceList, KubeVirtCR, Permitted
from nodeagent.model.snapshot import Names
from nodeagent.policy import groups, naming
from nodeagent.policy.permitted import WORDS

_NO_GATE = "Host Devices feature gate is not enabled in kubevirt-config"


def entries(cr: KubeVirtCR | None, resource: str) -> tuple[Permitted, ...]:
    """The entries that permit a resource."""
    listed = () if cr is None or cr.permitted is None else cr.permitted
    return tuple(entry for entry in listed if entry.resource == resource)


def refusals(cr: KubeVirtCR, resource: str, lists: Iterable[DeviceList]) -> Iterator[str]:
    """Why KubeVirt lets no machine ask for a resource in these lists: its words, and what to do."""
    for listed in lists:
        if listed is DeviceList.HOST_DEVICES and HOST_DEVICES not in cr.gates:
            yield f"{_NO_GATE}; add {HOST_DEVICES} to developerConfiguration.featureGates of the KubeVirt CR"
        if cr.permitted is not None and not entries(cr, resource):
            what = f"{listed} {resource} is not permitted in permittedHostDevices configuration"
            yield f"{what}; list it there with externalResourceProvider: true, or ask for another resource"


def fits(entry: Permitted, host_device: HostDevice, names: Names) -> bool:
    """True if the selector of an entry means a device; a vGPU on a VF has both ids and a type."""
    if entry.kind is Kind.MDEV:
        return naming.type_called(entry.selector) in _types(host_device, names)
    if entry.kind is Kind.PCI and isinstance(host_device, PciFunction):
        return entry.selector == f"{host_device.vendor}:{host_device.device}"
    if entry.kind is Kind.USB and isinstance(host_device, UsbDevice):
        return f"{host_device.vendor}:{host_device.product}" in entry.selectors
    return False


def _types(host_device: HostDevice, names: Names) -> frozenset[str]:
    if isinstance(host_device, Mdev):
        return naming.type_names(host_device.type_id, host_device.type_name)
    number = groups.vgpu_of(host_device) if isinstance(host_device, PciFunction) else None
    return naming.type_names(number, names.get(vgpu_key(number or "")))


def meant(entry: Permitted) -> str:
    """What an entry selects, in words."""
    return f"{WORDS[entry.kind]} {entry.selector}"


def disagreements(
    permitting: Iterable[Permitted], offered: Iterable[HostDevice], names: Names
) -> Iterator[str]:
    """Where the entries of a resource and what this node offers under its name do not go together."""
    listed = tuple(permitting)
    for entry in listed:
        if not entry.external:
            what = f"the KubeVirt CR gives it to virt-handler ({entry.place}), and this node offers it too"
            yield f"{what}; set externalResourceProvider: true there, or offer it here no more"
    others = [each.id for each in offered if not any(fits(entry, each, names) for entry in listed)]
    if listed and others:
        said = ", ".join(dict.fromkeys(map(meant, listed)))
        more, verb = (f" and {len(others) - 1} more", "are") if len(others) > 1 else ("", "is")
        yield f"the KubeVirt CR says {said}; this node offers {others[0]}{more}, which {verb} not that"
