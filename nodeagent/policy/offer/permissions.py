# SPDX-License-Identifier: Apache-2.0
"""The resources that the KubeVirt CR permits to VMs, compared with those that this node offers. Pure.

The checks are those of virt-controller and virt-api (pkg/virt-controller/services/renderresources.go in
KubeVirt, and the webhook for VirtualMachineInstances), with the same error texts, so that users find them.
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


def find_entries(cr: KubeVirtCR | None, resource: str) -> tuple[Permitted, ...]:
    """The entries that permit a resource."""
    listed = () if cr is None or cr.permitted is None else cr.permitted
    return tuple(entry for entry in listed if entry.resource == resource)


def find_refusals(cr: KubeVirtCR, resource: str, lists: Iterable[DeviceList]) -> Iterator[str]:
    """Why KubeVirt rejects VMs that request a resource in these lists: its error text, and the fix."""
    for listed in lists:
        if listed is DeviceList.HOST_DEVICES and HOST_DEVICES not in cr.gates:
            yield f"{_NO_GATE}; add {HOST_DEVICES} to developerConfiguration.featureGates of the KubeVirt CR"
        if cr.permitted is None or find_entries(cr, resource) or resource in dict(cr.unusable):
            continue
        text = f"{listed} {resource} is not permitted in permittedHostDevices configuration"
        yield f"{text}; list it there with externalResourceProvider: true, or request another resource"


def describe_unusable_entry(cr: KubeVirtCR, resource: str) -> tuple[str, ...]:
    """The text for an entry that permits a resource in KubeVirt, but gives nodeagent no device."""
    problem = dict(cr.unusable).get(resource)
    return () if problem is None else (f"its entry in the KubeVirt CR cannot be used: {problem.line}",)


def is_match(entry: Permitted, host_device: HostDevice, names: Names) -> bool:
    """True if the selector of an entry matches a device; a vGPU on a VF has both ids and a type."""
    if entry.kind is Kind.MDEV:
        return naming.normalize_type(entry.selector) in _find_type_names(host_device, names)
    if entry.kind is Kind.PCI and isinstance(host_device, PciFunction):
        return entry.selector == f"{host_device.vendor}:{host_device.device}"
    if entry.kind is Kind.USB and isinstance(host_device, UsbDevice):
        return f"{host_device.vendor}:{host_device.product}" in entry.selectors
    return False


def _find_type_names(host_device: HostDevice, names: Names) -> frozenset[str]:
    if isinstance(host_device, Mdev):
        return naming.type_names(host_device.type_id, host_device.type_name)
    number = groups.find_vgpu_type(host_device) if isinstance(host_device, PciFunction) else None
    return naming.type_names(number, names.get(vgpu_key(number or "")))


def describe_entry(entry: Permitted) -> str:
    """The devices that an entry selects, as a text."""
    return f"{WORDS[entry.kind]} {entry.selector}"


def find_contradictions(
    permitting: Iterable[Permitted], offered: Iterable[HostDevice], names: Names
) -> Iterator[str]:
    """The contradictions between the CR's entries of a resource and the devices that this node offers."""
    listed = tuple(permitting)
    for entry in listed:
        if not entry.external:
            text = f"the KubeVirt CR leaves it to virt-handler ({entry.place}), and this node offers it too"
            yield f"{text}; set externalResourceProvider: true there, or stop offering it here"
    others = [each.id for each in offered if not any(is_match(entry, each, names) for entry in listed)]
    if listed and others:
        selected = ", ".join(dict.fromkeys(map(describe_entry, listed)))
        more, verb = (f" and {len(others) - 1} more", "do") if len(others) > 1 else ("", "does")
        shown = f"{others[0]}{more}, which {verb} not match"
        yield f"the KubeVirt CR selects {selected}; this node offers {shown}"
