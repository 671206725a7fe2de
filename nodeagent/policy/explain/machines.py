# SPDX-License-Identifier: Apache-2.0
"""Explains whether this Node can pass the requested devices to a VM now, after another pod releases devices,
or never. Pure.

virt-controller requests one device of a resource for each entry of ``gpus`` and ``hostDevices`` (KubeVirt
renderresources.go), and virt-launcher reads as many addresses from the environment variable of that resource.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from nodeagent.model.allocation import Grant
from nodeagent.model.host import HostDevice, Kind, Mdev, PciFunction, UsbDevice
from nodeagent.model.ids import ResourceName, vgpu_key
from nodeagent.model.kubevirt import (
    HOST_DEVICES,
    DeviceList,
    KubeVirtCR,
    Permitted,
    UsedCR,
    VirtualMachine,
    VmDevice,
)
from nodeagent.model.resource import Isolation, Reason, ReasonCode, Resource, Via
from nodeagent.model.snapshot import Names
from nodeagent.policy import groups, naming
from nodeagent.policy.explain.why import why_not_offered
from nodeagent.policy.offer import grants, prefer
from nodeagent.policy.offer.turn import Decision
from nodeagent.policy.permitted import WORDS

_PASSING = frozenset({ReasonCode.GROUP_HELD, ReasonCode.HELD_OUTSIDE, ReasonCode.GOING_AWAY})
NO_GRANT = Grant()
_NO_GATE = "Host Devices feature gate is not enabled in kubevirt-config"
_UNTOLD = "no kubelet was queried, so devices that look free may be in use"
_UNCHECKED = "no KubeVirt CR is known, so permittedHostDevices is not checked"
_UNRESTRICTED = "the KubeVirt CR has no permittedHostDevices, so KubeVirt permits everything"


class Availability(StrEnum):
    """The possible availabilities of a resource on this Node, the best first."""

    NOW = "now"
    LATER = "later"  # after a pod releases devices
    OTHERS = "others"  # another device plugin provides it
    NEVER = "never"  # only after a change by the operator


class VMName(NamedTuple):
    """The kind and name of a VM."""

    kind: str
    namespace: str
    name: str


class RequestedDevice(NamedTuple):
    """A device in the specification of a VM: its list (gpus or hostDevices), and its name there."""

    list: str
    name: str


class CRName(NamedTuple):
    """The KubeVirt CR that permits the devices, and its source: file, api-server, daemon, record."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)  # no tuple: a tuple has a method named count
class ResourceRequest:
    """A resource that a VM requests, and the devices that its pod would get on this node.

    ``messages``: one line for each fact on which the verdict depends, and for each contradiction.
    """

    resource: str
    count: int
    availability: Availability
    devices: tuple[RequestedDevice, ...]
    env: Mapping[str, str]
    nodes: tuple[str, ...]
    cdi: tuple[str, ...]
    messages: tuple[str, ...]


class VMExplanation(NamedTuple):
    """Whether this Node can pass the requested devices to a VM: ``now``, ``later``, ``others``, ``never``."""

    vm: VMName
    availability: Availability
    resources: tuple[ResourceRequest, ...]
    notes: tuple[str, ...]
    cr: CRName | None


def explain_vm(machine: VirtualMachine, used: UsedCR, decision: Decision) -> VMExplanation:
    """Return the requests of the VM's pod and their availability on this node, by the CR that is ``used``."""
    by_resource: dict[str, list[VmDevice]] = {}
    for device in machine.devices:
        if device.resource is not None:
            by_resource.setdefault(device.resource, []).append(device)
    requests = tuple(
        _explain_request(resource, tuple(devices), used.cr, decision)
        for resource, devices in by_resource.items()
    )
    found = [Availability.NEVER] * bool(machine.refused) + [each.availability for each in requests]
    return VMExplanation(
        VMName(machine.kind, machine.namespace, machine.name),
        max(found, key=list(Availability).index, default=Availability.NOW),
        requests,
        tuple(_notes(machine, used.cr, decision)),
        CRName(used.name, used.source) if used.source else None,
    )


def _notes(machine: VirtualMachine, cr: KubeVirtCR | None, decision: Decision) -> Iterator[str]:
    yield from (f"{each.subject}: {each.message}; {each.hint}" for each in machine.refused)
    for device in machine.devices:
        if device.resource is None:
            yield (
                f"{device.name or 'a device'} comes from a ResourceClaim: "
                "nodeagent explain claim NAMESPACE/NAME shows its state"
            )
    yield from _describe_shared_groups(machine, decision)
    if machine.instancetype:
        yield f"the instancetype {machine.instancetype} may add devices: explain the VirtualMachineInstance"
    for name in machine.interfaces:
        yield (
            f"the interface {name} is of type sriov: its NetworkAttachmentDefinition names the resource, "
            "which nodeagent explain NAMESPACE/POD shows for the running pod"
        )
    if not machine.devices:
        return
    if cr is None:
        yield _UNCHECKED
    else:
        yield from (f"KubeVirt CR, {each.subject}: {each.message}; {each.hint}" for each in cr.refused)
        yield from (_UNRESTRICTED,) if cr.permitted is None else ()
    if not decision.snapshot.allocations.complete:
        yield _UNTOLD


def _describe_shared_groups(machine: VirtualMachine, decision: Decision) -> Iterator[str]:
    """A note if the VM requests several resources by DRA that have functions of the same IOMMU group.

    The counter of a group lets the scheduler allocate one function of it, or its board.
    """
    requested = {device.resource for device in machine.devices if device.resource is not None}
    for offers in decision.offers.values():
        counted = (
            each.match.resource
            for each in offers
            if each.match.rule.via is Via.DRA and each.match.rule.isolation is Isolation.GROUP
        )
        shared = sorted(requested.intersection(counted))
        if len(shared) > 1:
            yield (
                f"{' and '.join(shared)} are allocated by DRA, from different IOMMU groups; "
                "a claim for a board has all functions of one group"
            )
            return


def _explain_request(
    resource: str, devices: tuple[VmDevice, ...], cr: KubeVirtCR | None, decision: Decision
) -> ResourceRequest:
    lists = tuple(dict.fromkeys(device.listed for device in devices))
    refused = list(_find_refusals(cr, resource, lists)) if cr is not None else []
    if len(lists) > 1:
        refused.append("gpus and hostDevices both request it: virt-launcher would use the same device twice")
    found = decision.resources.get(ResourceName(resource))
    if found is not None and found.kind is Kind.USB and DeviceList.GPUS in lists:
        refused.append("it has USB devices, which virt-launcher looks for only in hostDevices")
    if found is None or not found.devices:
        request = _absent(resource, devices, cr, decision)
    else:
        request = _present(found, devices, cr, decision)
    unusable = _describe_unusable_entry(cr, resource) if cr is not None else ()
    messages = (*refused, *unusable, *request.messages)
    return replace(
        request, availability=Availability.NEVER if refused else request.availability, messages=messages
    )


def _explained(
    resource: str, devices: Sequence[VmDevice], availability: Availability, *why: str, grant: Grant = NO_GRANT
) -> ResourceRequest:
    return ResourceRequest(
        resource,
        len(devices),
        availability,
        tuple(RequestedDevice(device.listed, device.name) for device in devices),
        dict(grant.envs),
        tuple(node.path for node in grant.nodes),
        tuple(grant.cdi),
        why,
    )


def _absent(
    resource: str, devices: tuple[VmDevice, ...], cr: KubeVirtCR | None, decision: Decision
) -> ResourceRequest:
    """The explanation of a resource that this node does not offer."""
    permitting = _find_entries(cr, resource)
    theirs = [entry for entry in permitting if not entry.external]
    if theirs:
        place = theirs[0].place
        why = f"virt-handler offers this resource, not nodeagent (no externalResourceProvider at {place})"
        return _explained(resource, devices, Availability.OTHERS, why)
    if any(rule.name == resource for rule in decision.snapshot.spec.virt_handler_rules.values()):
        return _explained(resource, devices, Availability.OTHERS, "virt-handler offers it, not nodeagent")
    lines = [f"no device of this node is offered as {resource}{_nearest(resource, decision)}"]
    lines += (fitting := _list_others(permitting, (), decision))
    if permitting and not fitting:
        meant = " or ".join(dict.fromkeys(map(_describe_entry, permitting)))
        lines.append(f"the KubeVirt CR uses this name for {meant}, which this node does not have")
    elif permitting and not any(rule.name == resource for rule in decision.snapshot.spec.rules):
        lines.append("no rule of this node has this name; write one, or serve the CR: kubevirt.enabled")
    return _explained(resource, devices, Availability.NEVER, *lines)


def _nearest(resource: str, decision: Decision) -> str:
    known = decision.resources
    return f"; {naming.suggest(resource, known)}" if naming.find_similar(resource, known) else ""


def _list_others(permitting: Iterable[Permitted], listed: Collection[str], decision: Decision) -> list[str]:
    """One line for each state of devices that the KubeVirt CR selects, but this resource does not list."""
    snapshot = decision.snapshot
    others = (each for each in snapshot.host.devices() if each.id not in listed)
    return _together(
        {
            each.id: _otherwise(each, decision)
            for each in others
            if any(_is_permitted(entry, each, snapshot.names) for entry in permitting)
        }
    )


def _otherwise(host_device: HostDevice, decision: Decision) -> str:
    """The state of a device that the KubeVirt CR selects, as a text."""
    offer = decision.offer_with(host_device.id)
    if offer is None:
        becomes = f"not offered: {why_not_offered(host_device, decision.snapshot).text}"
    elif offer.device.reason is None:
        becomes = f"offered as {offer.match.resource}, Healthy"
    else:
        becomes = f"offered as {offer.match.resource}, Unhealthy: {offer.device.reason.message}"
    return f"the KubeVirt CR selects it, but it is {becomes}"


def _present(
    resource: Resource, devices: tuple[VmDevice, ...], cr: KubeVirtCR | None, decision: Decision
) -> ResourceRequest:
    """The explanation of a resource with devices: a Healthy device that is not in use is free."""
    if resource.direct:
        why = "it is for containers: virt-launcher reads no variable for it, and the VM would not start"
        return _explained(resource.name, devices, Availability.NEVER, why)
    snapshot = decision.snapshot
    holders = {each.id: snapshot.holder(each.id) for each in resource.devices}
    free = [each.id for each in resource.devices if each.healthy and holders[each.id] is None]
    waiting: dict[str, str] = {each: f"in use by {holder}" for each, holder in holders.items() if holder}
    broken: dict[str, str] = {}
    for each in resource.devices:
        if each.reason is not None and each.id not in waiting:
            (waiting if each.reason.code in _PASSING else broken)[each.id] = _told(each.reason)
    offered = [host_device for each in resource.devices if (host_device := snapshot.host.device(each.id))]
    permitting = _find_entries(cr, resource.name)
    odd = _find_contradictions(permitting, offered, snapshot.names)
    count, short = len(devices), f"{len(devices)} are requested, and {len(free)} of {len(holders)} are free"
    if len(free) >= count:
        grant = _grant(resource, free, count, decision)
        return _explained(resource.name, devices, Availability.NOW, *odd, grant=grant)
    later = len(free) + len(waiting) >= count
    others = _list_others(permitting, holders.keys(), decision)
    lines = (short, *_together(waiting), *_together(broken), *others, *odd)
    return _explained(resource.name, devices, Availability.LATER if later else Availability.NEVER, *lines)


def _grant(resource: Resource, free: Sequence[str], count: int, decision: Decision) -> Grant:
    """The Allocate response for the container, with the devices that the kubelet would prefer."""
    places = prefer.find_places(free, resource, decision, same_pod=False)
    return grants.grant(resource, prefer.choose(free, (), count, places), decision)


def _told(reason: Reason) -> str:
    return f"{reason.message}; {reason.hint}" if reason.hint else reason.message


def _together(said: Mapping[str, str]) -> list[str]:
    """One line for all devices with the same text."""
    by_text: dict[str, list[str]] = {}
    for device_id, text in said.items():
        by_text.setdefault(text, []).append(device_id)
    return [f"{naming.shorten(ids)}: {text}" for text, ids in by_text.items()]


# The checks of KubeVirt, with its own error texts, so that users find them: those of virt-controller
# (pkg/virt-controller/services/renderresources.go) and of the webhook for VirtualMachineInstances.


def _find_entries(cr: KubeVirtCR | None, resource: str) -> tuple[Permitted, ...]:
    """The entries of the KubeVirt CR that permit a resource."""
    listed = () if cr is None or cr.permitted is None else cr.permitted
    return tuple(entry for entry in listed if entry.resource == resource)


def _find_refusals(cr: KubeVirtCR, resource: str, lists: Iterable[DeviceList]) -> Iterator[str]:
    """Why KubeVirt rejects VMs that request a resource in these lists: its error text, and the fix."""
    for listed in lists:
        if listed is DeviceList.HOST_DEVICES and HOST_DEVICES not in cr.gates:
            yield f"{_NO_GATE}; add {HOST_DEVICES} to developerConfiguration.featureGates of the KubeVirt CR"
        if cr.permitted is None or _find_entries(cr, resource) or resource in dict(cr.unusable):
            continue
        text = f"{listed} {resource} is not permitted in permittedHostDevices configuration"
        yield f"{text}; list it there with externalResourceProvider: true, or request another resource"


def _describe_unusable_entry(cr: KubeVirtCR, resource: str) -> tuple[str, ...]:
    """The text for a CR entry from which nodeagent offers no device."""
    problem = dict(cr.unusable).get(resource)
    return () if problem is None else (f"its entry in the KubeVirt CR cannot be used: {problem.line}",)


def _is_permitted(entry: Permitted, host_device: HostDevice, names: Names) -> bool:
    """True if the selector of a CR entry matches a device; a vGPU on a VF has PCI ids and a vGPU type."""
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


def _describe_entry(entry: Permitted) -> str:
    """The devices that a CR entry selects, as a text."""
    return f"{WORDS[entry.kind]} {entry.selector}"


def _find_contradictions(
    permitting: Iterable[Permitted], offered: Iterable[HostDevice], names: Names
) -> Iterator[str]:
    """The contradictions between the CR's entries of a resource and the devices that this node offers."""
    listed = tuple(permitting)
    for entry in listed:
        if not entry.external:
            text = f"the KubeVirt CR leaves it to virt-handler ({entry.place}), and this node offers it too"
            yield f"{text}; set externalResourceProvider: true in the CR, or stop offering it on this node"
    others = [each.id for each in offered if not any(_is_permitted(entry, each, names) for entry in listed)]
    if listed and others:
        selected = ", ".join(dict.fromkeys(map(_describe_entry, listed)))
        more, verb = (f" and {len(others) - 1} more", "do") if len(others) > 1 else ("", "does")
        shown = f"{others[0]}{more}, which {verb} not match"
        yield f"the KubeVirt CR selects {selected}; this node offers {shown}"
