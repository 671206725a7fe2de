# SPDX-License-Identifier: Apache-2.0
"""Why is this device offered as it is, or not at all: the story of one device, for people and programs. Pure.

Built from the same decisions that the daemon takes (matches, health, grants), never from a second opinion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nodeagent.model.desired import DeviceRule, UsbRule
from nodeagent.model.host import Group, Host, HostDevice, PciFunction, VfioDevice
from nodeagent.model.resource import Reason, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.usb import UsbDevice
from nodeagent.policy import classes, groups
from nodeagent.policy.offer import discovery, grants, kinds, matches
from nodeagent.policy.offer.checks import devices, vfio
from nodeagent.policy.offer.turn import Decision
from nodeagent.policy.offer.units import Offer

_BRIDGE = "it is a PCI bridge; bridges are never given away"
_HUB = "it is a USB hub; hubs are never given away"


@dataclass(frozen=True, slots=True)
class Member:
    """One function of the device's group, as far as it matters to the group."""

    address: str
    driver: str | None
    role: str  # "vfio", "bridge", "unbound", "friendly", "blocks"; of a group not for VFIO "splits", "vacant"


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that decides about one device. The names are those of its vendor, and of its device or type."""

    host_device: HostDevice
    vendor_name: str | None
    device_name: str | None
    members: tuple[Member, ...]
    viable: bool
    rules: tuple[tuple[str, str], ...]  # rule → what it says of the device, in the order of asking
    resource: str | None = None
    reason: Reason | None = None
    left_out: tuple[str, str] = ("", "")  # why it is not offered, and what to do if it is to be
    env: str | None = None
    nodes: tuple[str, ...] = ()
    holder: str | None = None

    @property
    def hindered(self) -> bool:
        """True if a host driver keeps VFIO from the group, and that is not what its driver is for."""
        return hindered(self.members)

    @property
    def verdict(self) -> str:
        """One sentence: offered and Healthy, and then who has it; offered and Unhealthy; or not offered."""
        if self.resource is None:
            return f"not offered: {self.left_out[0]}"
        if self.reason is None:
            return f"offered as {self.resource}, Healthy{f', held by {self.holder}' if self.holder else ''}"
        return f"offered as {self.resource}, Unhealthy: {self.reason.what}"

    @property
    def to_do(self) -> str:
        """What to do for it to be given; "" if nothing, or if nothing is known."""
        if self.resource is None:
            return self.left_out[1]
        return self.reason.hint if self.reason is not None else ""


def explain(device_id: str, decision: Decision) -> Explanation | None:
    """The explanation for a PCI address or the UUID of an mdev; None if the host does not know it."""
    snapshot = decision.snapshot
    host_device = snapshot.host.device(device_id)
    if host_device is None:
        return None
    members = snapshot.host.members(host_device.group) or (
        (host_device,) if isinstance(host_device, PciFunction) else ()
    )
    offer = decision.offer_with(device_id)
    resource = decision.resources.get(offer.match.resource) if offer else None
    given = _given(offer, snapshot.host)
    holder = snapshot.allocations.holder(device_id)
    return Explanation(
        host_device=host_device,
        vendor_name=_vendor_name(host_device, snapshot),
        device_name=kinds.of(host_device).text(host_device, snapshot.names),
        members=tuple(members_of(members, snapshot.host)),
        viable=not groups.blockers(members),
        rules=_rules(host_device, offer, snapshot),
        resource=resource.name if resource else None,
        reason=offer.device.reason if offer else None,
        left_out=("", "") if offer else _left_out(host_device, snapshot),
        env=_env(resource, given) if resource else None,
        nodes=grants.device_nodes(given, resource.iommufd, snapshot.host) if resource else (),
        holder=str(holder) if holder else None,
    )


def _vendor_name(host_device: HostDevice, snapshot: Snapshot) -> str | None:
    """USB has vendors of its own, whose names nobody looks for."""
    return None if isinstance(host_device, UsbDevice) else snapshot.names.get(host_device.vendor or "")


def members_of(members: tuple[PciFunction, ...], host: Host) -> Iterator[Member]:
    """Where nobody is to have the group through VFIO, the driver of a card is as it should be."""
    for_vfio = any(map(groups.ready, members))
    for member in members:
        split = None if for_vfio else _split_role(member, host)
        yield Member(member.address, member.driver, split or role(member, members))


def hindered(members: Iterable[Member]) -> bool:
    """True if one of the members blocks the group."""
    return any(member.role == "blocks" for member in members)


def _split_role(member: PciFunction, host: Host) -> str | None:
    """What a function is whose driver makes mdevs or vGPUs of it; None if it does not."""
    if groups.takes_vgpu(member):
        return "vacant"
    return "splits" if groups.splits(member, host) else None


def role(member: PciFunction, members: Iterable[PciFunction]) -> str:
    """What a function means for the viability of its group, which has these members, were that for VFIO."""
    if member in groups.blockers(members):
        return "blocks"
    if member.driver is None:
        return "unbound"
    if groups.ready(member):
        return "vfio"
    return "bridge" if member.bridge else "friendly"


def _given(offer: Offer | None, host: Host) -> tuple[HostDevice, ...]:
    """All that a pod would get with the device, which may stand for more than this one."""
    host_devices = map(host.device, offer.host_devices) if offer is not None else ()
    return tuple(host_device for host_device in host_devices if host_device is not None)


def _env(resource: Resource, host_devices: Iterable[HostDevice]) -> str:
    return " ".join(f"{key}={value}" for key, value in grants.environment(resource, host_devices))


def _rules(host_device: HostDevice, offer: Offer | None, snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
    """All that were asked for the device, and what they said; the last one takes it, if any does."""
    said: list[tuple[str, str]] = []
    group = snapshot.host.groups.get(host_device.group) if host_device.group is not None else None
    for rule, refusal in matches.verdicts(host_device, group, snapshot.desired, snapshot.names):
        if refusal is None and isinstance(rule, UsbRule) and (offer is None or offer.match.rule != rule):
            refusal = matches.INCOMPLETE
        said.append((_label(rule), refusal or "takes it"))
        if refusal is None:
            return tuple(said)
    if offer is not None:
        said.append(("memory", "keeps it: what was offered stays listed while it exists"))
    never = _HUB if isinstance(host_device, UsbDevice) else _BRIDGE
    return tuple(said) or (("all rules", never),)


def _left_out(host_device: HostDevice, snapshot: Snapshot) -> tuple[str, str]:
    """What keeps a device that nobody takes from being offered, and what to do if it is to be."""
    if isinstance(host_device, PciFunction) and host_device.bridge:
        return _BRIDGE, ""
    if host_device.unreadable is not None:
        return host_device.unreadable, ""
    if isinstance(host_device, UsbDevice):
        return _left_out_usb(host_device, snapshot)
    return _left_out_vfio(host_device, snapshot)


def _left_out_vfio(host_device: VfioDevice, snapshot: Snapshot) -> tuple[str, str]:
    group = snapshot.host.groups.get(host_device.group) if host_device.group is not None else None
    why = matches.discoverable(host_device, group, snapshot.desired) or "it was not asked"
    if not isinstance(host_device, PciFunction):
        return _nobody(why), "name its type in a rule"
    if (used := classes.in_use(host_device)) and not groups.ready(host_device):
        return f"{_nobody(_leaves_alone(host_device, why, snapshot))}; it is {used}", ""
    if hint := _in_vain(host_device, group, snapshot.host):
        return _nobody(why), hint
    mdevs = sum(mdev.parent == host_device.address for mdev in snapshot.host.mdevs.values())
    if (parts := classes.carried(host_device, mdevs)) and not groups.ready(host_device):
        return f"it carries {parts}, each of which is a device of its own", classes.bind(
            host_device, mdevs=mdevs
        )
    card = classes.card_of(host_device, snapshot.host)
    if snapshot.desired.discovery.enabled and card is not None:
        return f"it is an audio device that goes with its card {card.address}", _with_card(host_device, card)
    steps = []
    if not _discoverable_class(host_device, snapshot):
        steps = [f'name it in a rule: pci: [{{addresses: ["{host_device.address}"]}}]']
    if not (groups.ready(host_device) or groups.takes_vgpu(host_device) or groups.unfinished(host_device)):
        steps.append(classes.bind(host_device))
    return _nobody(_leaves_alone(host_device, why, snapshot)), "; and ".join(steps)


def _left_out_usb(device: UsbDevice, snapshot: Snapshot) -> tuple[str, str]:
    if device.hub:
        return _HUB, ""
    name = f'serials: ["{device.serial}"]' if device.serial else f'ports: ["{device.name}"]'
    return matches.untaken(device, snapshot.desired), f"name it in a rule: usb: [{{{name}}}]"


def _leaves_alone(function: PciFunction, why: str, snapshot: Snapshot) -> str:
    """Why discovery does; a class that it is not for is said in words."""
    if not snapshot.desired.discovery.enabled or _discoverable_class(function, snapshot):
        return why
    return f"it is {classes.words(function)} (class {(function.pci_class or '?')[:4]}), which it leaves alone"


def _in_vain(function: PciFunction, group: Group | None, host: Host) -> str:
    """What to do before anything else, if the kernel would give the function to nobody; else ""."""
    if function.left_behind:
        return devices.lost_hint(function)
    if groups.going_away(function, group):
        return devices.WAITS_HINT
    if groups.kept_by_firmware(group, host):
        return f"firmware has memory mapped 1:1 for its IOMMU group: {vfio.FIRMWARE_SETUP}"
    return devices.token_hint(function) if groups.needs_token(function) else ""


def _with_card(audio: PciFunction, card: PciFunction) -> str:
    """What to do for the audio function of a card: as long as the host has the card, that is the question."""
    if not groups.ready(card):
        return f"ask for its card: nodeagent explain {card.address}"
    return classes.bind(audio, f" as well as {card.address}") if groups.blockers((audio,)) else ""


def _nobody(why: str) -> str:
    return f"no rule takes it, and {why if why == matches.OFF else f'discovery does not: {why}'}"


def _discoverable_class(function: PciFunction, snapshot: Snapshot) -> bool:
    return snapshot.desired.discovery.enabled and discovery.of_its_class(function, snapshot.desired.discovery)


def _label(rule: DeviceRule | None) -> str:
    if rule is None:
        return "discovery"
    return f"rule {rule.name} ({rule.place})" if rule.place else f"rule {rule.name}"
