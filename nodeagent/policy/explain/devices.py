# SPDX-License-Identifier: Apache-2.0
"""The facts of one device as ``explain`` shows them: class, driver, power, open count, and so on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.model.host import Host, HostDevice, Mdev, PciFunction, UsbDevice
from nodeagent.model.resource import Reason, ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import classes, groups
from nodeagent.policy.explain import cards
from nodeagent.policy.explain.cards import CardExplanation
from nodeagent.policy.explain.why import RuleVerdict, describe_verdicts, verdicts, why_not_offered
from nodeagent.policy.groups import OpenState
from nodeagent.policy.offer import discovery, grants, kinds
from nodeagent.policy.offer.turn import Decision

if TYPE_CHECKING:
    from nodeagent.policy.explain.passthrough import Binding


class DeviceRow(NamedTuple):
    """One device in short.

    ``name`` is the name of the device model or of the vGPU type. ``resource`` is null if the device is not
    offered; ``message`` has the cause. ``message`` of an offered device says why it is Unhealthy, and is ""
    if the device is Healthy. ``matched_by`` is "rule NAME", "discovery", or "" if the device stays listed for
    another reason.
    """

    id: str
    name: str | None
    resource: str | None
    matched_by: str
    code: ReasonCode | None
    message: str
    holder: str | None

    @property
    def offered(self) -> bool:
        """True if the device is listed to the kubelet."""
        return self.resource is not None

    def __str__(self) -> str:
        if self.resource is None:
            return f"not offered: {self.message}"
        held = f", in use by {self.holder}" if self.holder else ""
        return f"{self.resource}{held}" + (f": {self.message}" if self.message else "")


class Member(NamedTuple):
    """A function of an IOMMU group, and its effect on the group.

    ``role``: "vfio", "bridge", "unbound", "friendly" or "blocks". In a group that is not for VFIO, also
    "splits" (the driver splits the function into mdevs or vGPUs) and "vacant" (the function can have a vGPU
    type, but has none).
    """

    address: str
    driver: str | None
    role: str


def is_viable(members: Iterable[PciFunction]) -> bool:
    """Return True if VFIO can use the IOMMU group of these functions."""
    return not groups.find_blockers(members)


def is_blocked(roles: Iterable[str]) -> bool:
    """Return True if a function on a host driver blocks a group with these roles that is for VFIO."""
    return "blocks" in roles


def members_of(functions: Sequence[PciFunction], host: Host) -> Iterator[Member]:
    """Yield the members of a group with their roles."""
    for_vfio = any(map(groups.is_assignable, functions))
    for function in functions:
        part = "" if for_vfio else _split_role(function, host)
        yield Member(function.address, function.driver, part or role(function, functions))


def _split_role(function: PciFunction, host: Host) -> str:
    if groups.is_vgpu_capable(function):
        return "vacant"
    return "splits" if groups.is_split(function, host) else ""


def role(function: PciFunction, functions: Iterable[PciFunction]) -> str:
    """Return the effect of a function on its IOMMU group, if the group is for VFIO."""
    if function in groups.find_blockers(functions):
        return "blocks"
    if function.driver is None:
        return "unbound"
    if groups.is_assignable(function):
        return "vfio"
    return "bridge" if function.bridge else "friendly"


class DeviceExplanation(NamedTuple):
    """All facts on which the state of one device depends.

    ``hint``: how to make the device available. ``healthy`` is null if the device is not offered. A PCI
    function has ``address``, ``device`` and ``vgpu_type``, an mdev ``uuid``, ``type`` and ``parent``.
    ``facts``: the lines that ``explain`` prints, by the first word of each line. ``split``: the card, if the
    device is split.
    """

    id: str
    device_kind: str
    verdict: str
    hint: str
    resource: str | None
    healthy: bool | None
    reason: Reason | None
    vendor: str | None
    vendor_name: str | None
    device_name: str | None
    driver: str | None
    group: int | None
    viable: bool
    members: tuple[Member, ...]
    rules: tuple[RuleVerdict, ...]
    env: str | None
    nodes: tuple[str, ...]
    holder: str | None
    facts: Mapping[str, str]
    address: str | None = None
    device: str | None = None
    vgpu_type: str | None = None
    uuid: str | None = None
    type: str | None = None
    parent: str | None = None
    split: CardExplanation | None = None


def rows(decision: Decision) -> Iterator[DeviceRow]:
    """Yield the rows of all devices, those of mdevs that are being removed last."""
    host = decision.snapshot.host
    return (row(host_device, decision) for host_device in chain(host.devices(), host.leaving.values()))


def row(host_device: HostDevice, decision: Decision) -> DeviceRow:
    """Return the row (one line of ``nodeagent scan``) of one device."""
    snapshot, offer = decision.snapshot, decision.offer_with(host_device.id)
    name = kinds.find_kind(host_device).text(host_device, snapshot.names)
    if offer is None:
        why = why_not_offered(host_device, snapshot).text
        return DeviceRow(host_device.id, name, None, "", None, why, None)
    reason, holder = offer.device.reason, snapshot.holder(host_device.id)
    return DeviceRow(
        host_device.id,
        name,
        offer.match.resource,
        _matched_by(host_device, decision),
        reason.code if reason else None,
        reason.message if reason else "",
        str(holder) if holder else None,
    )


def _matched_by(host_device: HostDevice, decision: Decision) -> str:
    rule, refusal = (verdicts(host_device, decision) or [(None, "none was asked")])[-1]
    if refusal is not None:
        return ""
    return "discovery" if rule is None else f"rule {rule.name}"


def explain(device_id: str, decision: Decision) -> DeviceExplanation | None:
    """Return the explanation of a PCI address, UUID or USB id; None if the host has no such device."""
    snapshot = decision.snapshot
    host = snapshot.host
    host_device = host.device(device_id)
    if host_device is None:
        return None
    members = host.members(host_device.group)
    if not members and isinstance(host_device, PciFunction):
        members = (host_device,)
    offer, short = decision.offer_with(device_id), row(host_device, decision)
    resource = decision.resources.get(offer.match.resource) if offer else None
    together = [each for each in map(host.device, offer.host_devices) if each] if offer else []
    reason = offer.device.reason if offer else None
    holder = snapshot.holder(device_id)
    hint = reason.hint if reason else "" if offer else why_not_offered(host_device, snapshot).hint
    binding = _find_binding(host_device, snapshot)
    if binding is not None and binding.to_do is not None:
        hint = binding.to_do
    env = grants.environment(resource, together) if resource else ()
    is_usb = isinstance(host_device, UsbDevice)  # the names of USB vendors are not looked up
    return DeviceExplanation(
        id=host_device.id,
        device_kind=host_device.kind,
        verdict=_verdict(short, reason),
        hint=hint,
        resource=short.resource,
        healthy=None if offer is None else reason is None,
        reason=reason,
        vendor=host_device.vendor,
        vendor_name=None if is_usb else snapshot.names.get(host_device.vendor or ""),
        device_name=short.name,
        driver=host_device.driver,
        group=host_device.group,
        viable=is_viable(members),
        members=tuple(members_of(members, host)),
        rules=(*describe_verdicts(host_device, decision), *([] if binding is None else [binding.verdict])),
        env=" ".join(f"{key}={value}" for key, value in env) if resource else None,
        nodes=grants.device_nodes(together, resource.iommufd, host) if resource else (),
        holder=str(holder) if holder else None,  # also for a device that is not offered
        facts=facts_of(host_device),
        split=cards.explain(device_id, snapshot),
        **identity_of(host_device),
    )


def _find_binding(host_device: HostDevice, snapshot: Snapshot) -> Binding | None:
    """Return the passthrough rule for a function and what prevents it; few nodes have such rules."""
    spec = snapshot.spec
    if not isinstance(host_device, PciFunction) or not (
        spec.passthrough or spec.sriov or snapshot.ledger.asked
    ):
        return None
    from nodeagent.policy.explain import passthrough  # here: the daemon goes without

    return passthrough.find_binding(host_device, snapshot)


def _verdict(short: DeviceRow, reason: Reason | None) -> str:
    """Return one sentence: not offered; offered and Unhealthy; or Healthy, and then which pod uses it."""
    if short.resource is None:
        return str(short)
    if reason is not None:
        return f"offered as {short.resource}, Unhealthy: {reason.message}"
    return f"offered as {short.resource}, Healthy{f', in use by {short.holder}' if short.holder else ''}"


Facts = list[tuple[str, str | None]]


def facts_of(host_device: HostDevice) -> dict[str, str]:
    """Return the known facts of a device as ``explain`` shows them, by the first word of each line."""
    named, own = _FACTS.get(type(host_device), (_no_facts, _no_facts))
    facts = [
        *named(host_device),
        ("driver", host_device.driver or "none"),
        ("numa", None if host_device.numa_node is None else str(host_device.numa_node)),
        *own(host_device),
        ("fault", host_device.unreadable),
    ]
    return {key: value for key, value in facts if value}


def _no_facts(_: HostDevice) -> Facts:
    return []


def _class(function: PciFunction) -> Facts:
    code = function.pci_class
    return [("class", f"{code}  {classes.describe_class(function)}" if code else None)]


def _pci_facts(function: PciFunction) -> Facts:
    hints = function.hints
    return [
        ("power", function.power_state),
        ("opens", _opens(function)),
        ("pf", groups.describe_pf(function)),
        ("vfs", ", ".join(function.vfs)),
        ("vgpu", function.vgpu_type or ("none" if function.vgpu else None)),
        ("resets", " ".join(hints.reset_methods) if hints else None),
        ("errors", f"{hints.aer_fatal} fatal PCIe errors" if hints and hints.aer_fatal else None),
        ("vfio", function.vfio_device),
        ("note", _NO_FABRIC if discovery.is_nvswitch(function) else None),
    ]


_NO_FABRIC = "NVIDIA's Fabric Manager configures fabric partitions, not nodeagent: see docs/vgpu.md"


def _opens(function: PciFunction) -> str | None:
    """The number of opens of the device, with a note if the count may be a leftover of a former driver."""
    if not groups.is_vfio_bound(function) or not (
        groups.is_open(function) or groups.has_leftover_count(function)
    ):
        return None
    note = {
        OpenState.OPEN: f" in {function.sight.process}" if function.sight and function.sight.process else "",
        OpenState.CLOSED: " by the kernel's open count, left by an earlier driver: no process has it open",
        OpenState.UNKNOWN: " by the kernel's open count, maybe left by an earlier driver: run this on the"
        " host as root to see the process",
    }
    return f"{function.enable}{note[groups.find_open_state(function)]}"


def _mdev_facts(mdev: Mdev) -> Facts:
    return [("parent", mdev.parent), ("vfio", mdev.vfio_device)]


def _usb_facts(device: UsbDevice) -> Facts:
    return [
        ("number", f"{device.place}  {device.node}"),
        ("serial", device.serial or "none"),
        ("classes", " ".join(each.code for each in device.interfaces)),
        ("used", "; ".join(map(str, device.uses.found)) or None),
        ("unseen", "; ".join(device.uses.unseen) or None),
    ]


_FACTS: Mapping[type, tuple[Callable[[Any], Facts], Callable[[Any], Facts]]] = {
    PciFunction: (_class, _pci_facts),
    Mdev: (lambda mdev: [("type", mdev.type_id)], _mdev_facts),
    UsbDevice: (lambda device: [("port", f"{device.name}  {device.path}")], _usb_facts),
}
"""Type of device → its own facts, before and after those that all devices have."""


def identity_of(host_device: HostDevice) -> dict[str, Any]:
    """Return the fields of the JSON document that only devices of this kind have."""
    return {key: getattr(host_device, name) for key, name in _IDENTITY.get(type(host_device), {}).items()}


_IDENTITY: Mapping[type, Mapping[str, str]] = {
    PciFunction: {"address": "address", "device": "device", "vgpu_type": "vgpu_type"},
    Mdev: {"uuid": "uuid", "type": "type_id", "parent": "parent"},
    UsbDevice: {"device": "product", "address": "place"},
}
"""Type of device → the fields that identify it besides its id: field → attribute."""
