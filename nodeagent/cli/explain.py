# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain NAME``: finds the object with this name on the node, and prints its explanation.

Addresses, UUIDs, paths and places of rules (config.yaml:12) are recognized by their form. Other names belong
to resources, parents of mdevs, pods and rules. The name of a resource has a dot before its slash; a pod's
``namespace/name`` has none. ``policy/explain`` makes the explanations, which are the JSON documents; this
module makes their texts.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import anyio

from nodeagent.agent import oneshot
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.base.terminal import table
from nodeagent.cli import args, daemon_client, output
from nodeagent.model import plain
from nodeagent.model.host import Host, Kind, kind_of_id
from nodeagent.model.ids import PciAddress, mdev_uuid, pci_address
from nodeagent.model.resource import Via
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import Status
from nodeagent.policy import naming
from nodeagent.policy.change import bindings
from nodeagent.policy.explain import cards, devices, groups, passthrough, pods, resources, rules
from nodeagent.policy.explain.cards import CardExplanation, CardInstance
from nodeagent.policy.explain.devices import DeviceExplanation, is_blocked
from nodeagent.policy.explain.groups import GroupExplanation
from nodeagent.policy.explain.pods import PodExplanation, PodResource
from nodeagent.policy.explain.resources import ResourceExplanation
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.policy.explain.suggestions import suggestions
from nodeagent.policy.explain.why import label
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.turn import Decision

_VMI = "vmi"  # in place of a name: explain a VM
_CLAIM = "claim"  # in place of a name: explain a ResourceClaim
_GROUP = re.compile(r"/dev/vfio/(?:noiommu-)?([0-9]{1,9})")
_DEVICE = re.compile(r"/dev/vfio/devices/(vfio\d+)")
_PORT = re.compile(r"[0-9]+-[0-9]+(\.[0-9]+)*")
_PLACE = re.compile(r".+\.ya?ml:[0-9]+")
_SHOWN = 4  # ids that are shown in one line
_OF_MDEV = "mdev"
_ROLES = {
    "vfio": "ready for VFIO",
    "bridge": "a bridge, no effect",
    "unbound": "no driver, no effect",
    "friendly": "its driver is compatible with VFIO",
    "blocks": "BLOCKS the group: bound to a host driver",
    "splits": "split by its driver: its vGPUs are assigned, not the card",
    "vacant": "its driver supports vGPU types, but no vGPU type is set",
}


class _Subject(NamedTuple):
    """The name to explain, and the Decision and Status that explain it."""

    name: str
    options: argparse.Namespace
    decision: Decision
    status: Status | None  # the daemon's, if one answers


Explanation = (
    DeviceExplanation
    | CardExplanation
    | ResourceExplanation
    | RuleExplanation
    | GroupExplanation
    | PodExplanation
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name, and the files of ``explain vmi``."""
    parser.add_argument(
        "subject",
        metavar="NAME",
        help="address, UUID, resource, path, pod, rule, vmi, claim",
    )
    parser.add_argument(
        "machine",
        metavar="FILE",
        nargs="?",
        help="after vmi: a YAML or JSON file; after vmi or claim: NAMESPACE/NAME in the cluster",
    )
    parser.add_argument("--cr", metavar="FILE", help="after vmi: a KubeVirt CR or HyperConverged")
    parser.add_argument("--host", metavar="FILE", help=f"use {args.SAVED}")
    args.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Print the explanation of a name. :raises NodeagentError: if no object has this name."""
    if options.subject == _VMI:
        from nodeagent.cli import explain_vmi  # here: it reads manifests, and may query the API server

        return explain_vmi.run(options)
    if options.subject == _CLAIM:
        from nodeagent.cli import explain_claim  # here: it queries the API server

        return explain_claim.run(options)
    if options.machine is not None or options.cr is not None:
        raise ConfigError("FILE and --cr are only for VMs", "write: nodeagent explain vmi FILE --cr FILE")
    name = _find_id(" ".join(options.subject.split()))
    address = pci_address(name)
    read = daemon_client.read_named_basis if address is None else daemon_client.read_basis
    basis, first_line = read(options)
    snapshot = _complete_snapshot(basis.snapshot, address, options)
    subject = _with_status(name, options, turn.decide_first(snapshot, basis.matched))
    found = _explain(subject)
    kind = type(found).__name__
    messages = (first_line, _describe_others(subject), *_list_rejected_entries(subject))
    return output.emit(options, kind, found, lambda: text(found), *messages)


def _find_id(name: str) -> str:
    """The id of the device with this name in a ResourceSlice; other names as they are."""
    if not name.startswith(("pci-", "mdev-", "board-")):
        return name
    from nodeagent.policy.dra.devices import find_lead_id  # here: few nodes use DRA

    return find_lead_id(name) or name


def _complete_snapshot(
    snapshot: Snapshot, address: PciAddress | None, options: argparse.Namespace
) -> Snapshot:
    """Add this machine's ledger and id to the Snapshot, and the slow facts of the function."""
    if args.is_saved(options):
        return replace(snapshot, machine_id="")  # this machine's id says nothing about a saved host
    root = args.find_root(options)
    if address is not None:
        snapshot = anyio.run(oneshot.with_hints, root, snapshot, address, options.timeouts)
    return oneshot.with_memory(root, snapshot)


def _with_status(name: str, options: argparse.Namespace, decision: Decision) -> _Subject:
    """Return the Subject, with the resources that the daemon lists without a device."""
    status = None if options.host is not None else _read_status(options)
    if status is not None:
        with suppress(ValueError):
            listed = {**resources.remembered(status, decision), **decision.resources}
            decision = replace(decision, resources=listed)
    return _Subject(name, options, decision, status)


def _read_status(options: argparse.Namespace) -> Status | None:
    try:
        return plain.load(Status, daemon_client.find_status(options))
    except (TypeError, ValueError):
        return None


def _explain(subject: _Subject) -> Explanation:
    """Explain a name by its form. :raises NodeagentError: if no object has this name."""
    name = subject.name
    if kind_of_id(name) is not None or subject.decision.snapshot.host.device(name) is not None:
        return _explain_device(subject)
    if _PORT.fullmatch(name):
        return _explain_port(subject)
    if name.startswith("/dev/"):
        return _explain_path(subject)
    if _PLACE.fullmatch(name):
        return _explain_rule(subject)
    return _explain_name(subject)


def _explain_device(subject: _Subject) -> DeviceExplanation:
    device_id = pci_address(subject.name) or mdev_uuid(subject.name) or subject.name
    explanation = devices.explain(device_id, subject.decision)
    if explanation is None:
        raise _describe_no_device(device_id, subject)
    return explanation


def _explain_port(subject: _Subject) -> DeviceExplanation:
    """Explain the USB device at a port."""
    usb = subject.decision.snapshot.host.usb.values()
    there = next((each.id for each in usb if each.name == subject.name), subject.name)
    return _explain_device(subject._replace(name=there))


def _describe_no_device(device_id: str, subject: _Subject) -> NodeagentError:
    """Return the error for a missing device, which is still listed as Unhealthy while a pod uses it."""
    for resource in () if subject.status is None else subject.status.resources:
        for device in resource.devices:
            if device.id == device_id and not device.healthy:
                what = f"{device_id} is listed as {resource.name}, Unhealthy: {device.message}"
                return NodeagentError(what, device.hint or "")
    return NodeagentError(f"there is no device {device_id} on this host", "nodeagent scan lists all devices")


def _explain_path(subject: _Subject) -> Explanation:
    """Explain a path below /dev: of a group, of a VFIO device, or of a device node of a resource."""
    path, host = subject.name, subject.decision.snapshot.host
    if named := _GROUP.fullmatch(path):
        return _explain_group(int(named[1]), subject)
    if named := _DEVICE.fullmatch(path):
        return _explain_device(subject._replace(name=_find_by_node(named[1], path, host)))
    names = resources.of_node(path, subject.decision)
    if not names:
        raise NodeagentError(
            f"no rule names {path}",
            "give a VFIO path such as /dev/vfio/12, or a path of a rule: see nodeagent config",
        )
    found = resources.explain(names[0], subject.decision, subject.status)
    if found is None:
        raise _describe_no_name(subject)
    return found


def _describe_others(subject: _Subject) -> str:
    """A message about a device node that several resources offer; otherwise ""."""
    path = subject.name
    if not path.startswith("/dev/") or _GROUP.fullmatch(path) or _DEVICE.fullmatch(path):
        return ""
    _, *others = resources.of_node(path, subject.decision)
    return f"{path} is also offered as {', '.join(others)}" if others else ""


def _list_rejected_entries(subject: _Subject) -> list[str]:
    """The entries of the KubeVirt CR with this resource name that cannot be used, each with its fix."""
    problems = () if subject.status is None else subject.status.cluster.refused
    return [problem.line for problem in problems if f'"{subject.name}"' in problem.message]


def _explain_group(number: int, subject: _Subject) -> GroupExplanation:
    explanation = groups.explain(number, subject.decision)
    if explanation is None:
        raise NodeagentError(
            f"there is no IOMMU group {number} on this host",
            "nodeagent explain DEVICE shows the group of a device",
        )
    return explanation


def _find_by_node(vfio_device: str, path: str, host: Host) -> str:
    found = next(
        (each.id for each in host.devices() if getattr(each, "vfio_device", None) == vfio_device), None
    )
    if found is None:
        raise NodeagentError(f"no device on this host has {path}", "nodeagent scan lists all devices")
    return found


def _explain_passthrough_rule(subject: _Subject) -> RuleExplanation | None:
    """Explain the passthrough rule at this place, with all facts for a bind; None if there is no rule."""
    snapshot = subject.decision.snapshot
    if (rule := passthrough.find_rule(subject.name, snapshot)) is None:
        return None
    if not args.is_saved(subject.options):
        units = bindings.find_groups(passthrough.selected(rule, snapshot), snapshot.host)
        functions = [each.address for members in units for each in members]
        root = args.find_root(subject.options)
        snapshot = anyio.run(oneshot.with_close_uses, root, snapshot, functions, subject.options.timeouts)
    return passthrough.explain_rule(rule, snapshot)


def _explain_rule(subject: _Subject) -> RuleExplanation:
    explanation = rules.at(subject.name, subject.decision) or _explain_passthrough_rule(subject)
    if explanation is None:
        spec = subject.decision.snapshot.spec
        places = [rule.place for rule in (*spec.rules, *spec.passthrough) if rule.place]
        raise NodeagentError(
            f"no rule begins at {subject.name}",
            _hint_at(places, "rules begin at", "there are no rules"),
        )
    return explanation


def _explain_name(subject: _Subject) -> Explanation:
    """Explain the resource, parent of mdevs, pod or KubeVirt CR rule with this name."""
    name, decision = subject.name, subject.decision
    found = (
        resources.explain(name, decision, subject.status)
        or cards.explain(name, decision.snapshot)
        or pods.explain(name, decision)
        or rules.at(name, decision)
    )
    if found is not None:
        return found
    domain, slash, _ = subject.name.partition("/")
    if slash and "." not in domain:
        raise _describe_no_pod(subject)
    raise _describe_no_name(subject)


def _describe_no_pod(subject: _Subject) -> NodeagentError:
    snapshot = subject.decision.snapshot
    known = pods.known(snapshot)
    if not snapshot.allocations.answered:
        what = f"the devices of pods are not known here, so the devices of {subject.name} are unknown"
        return NodeagentError(what, "only a running daemon queries the kubelet: see nodeagent status")
    what = f"{subject.name} is neither a resource nor a pod that uses a device of this node"
    hint = _hint_at(known, "pods that use devices:", "no pod uses a device", subject.name)
    if snapshot.claims:
        hint = f"{hint}; for a pod with claims: nodeagent explain claim NAMESPACE/NAME"
    return NodeagentError(what, hint)


def _describe_no_name(subject: _Subject) -> NodeagentError:
    """Return the error for an unknown name, with a suggestion or with the nearest known names."""
    name, decision = subject.name, subject.decision
    if rejected := _list_rejected_entries(subject):
        return NodeagentError(f"{name} is not offered here: {rejected[0]}")
    possible = suggestions(name, decision.snapshot)
    if possible:
        more = f" (and {len(possible) - 1} more)" if possible[1:] else ""
        return NodeagentError(
            f"{name} is not offered here, but {possible[0].message}{more}", possible[0].missing
        )
    if "/" not in name:
        return ConfigError(
            f"{name} is no PCI address, UUID, resource, /dev path, pod or rule",
            _hint_at([*decision.resources, *decision.snapshot.host.mdev_parents], "known here:", "", name),
        )
    return NodeagentError(
        f"no device here is offered as {name}, and no rule, alias or card provides it",
        _hint_at(tuple(decision.resources), "resources here:", "there are no resources here", name),
    )


def _hint_at(known: Sequence[str], before: str, without: str, like: str = "") -> str:
    """Return a hint with at most three known names, the nearest first."""
    if not known:
        return without or "nodeagent scan lists all devices"
    return naming.suggest(like, known, before)


def text(explanation: Explanation) -> str:
    """The text of an explanation."""
    match explanation:
        case DeviceExplanation():
            return device_text(explanation)
        case CardExplanation():
            return card_text(explanation)
        case ResourceExplanation():
            return resource_text(explanation)
        case RuleExplanation():
            return rule_text(explanation)
        case GroupExplanation():
            return group_text(explanation)
        case PodExplanation():
            return pod_text(explanation)


def device_text(explanation: DeviceExplanation) -> str:
    """The verdict about a device and its fix, then the facts, and the types and mdevs of a card."""
    lines = [f"{explanation.id}  {explanation.verdict}"]
    if explanation.hint:
        lines.append(f"  {'to do' if explanation.resource else 'to offer it'}: {explanation.hint}")
    lines += ["", f"  device  {_name(explanation)}"]
    lines += [f"  {key:<7} {value}" for key, value in explanation.facts.items()]
    lines += ["", f"  group   {_device_group(explanation)}"]
    if explanation.group is not None and explanation.members:
        rows = [
            (each.address, each.driver or "-", role_text(each.role, own=each.address == explanation.id))
            for each in explanation.members
        ]
        lines.append(table(("MEMBER", "DRIVER", "EFFECT"), rows, indent="          "))
    if explanation.split is not None:
        lines += ["", "  card", *(f"          {line}".rstrip() for line in _card_lines(explanation.split))]
    lines += ["", "  rules"] + [f"          {rule}: {says}" for rule, says in explanation.rules]
    if explanation.healthy and explanation.env is not None:
        lines += ["", f"  a pod gets  {explanation.env}", f"{' ' * 14}{' '.join(explanation.nodes)}"]
    if explanation.holder is not None:
        lines += ["", f"  in use by {explanation.holder}"]
    return "\n".join(lines)


def _name(explanation: DeviceExplanation) -> str:
    known = " ".join(name for name in (explanation.vendor_name, explanation.device_name) if name)
    if explanation.device_kind == Kind.MDEV:
        return f"{explanation.device_kind}  {known or 'unknown type'}"
    unknown = "without a name" if explanation.device_kind == Kind.USB else "unknown to pci.ids"
    return f"{explanation.vendor or '?'}:{explanation.device or '?'}  {known or unknown}"


def role_text(role: str, *, own: bool = False) -> str:
    """The effect of a function on its IOMMU group, as a text. ``own``: it is the explained device."""
    return "no driver, so VFIO cannot assign it" if own and role == "unbound" else _ROLES[role]


def _device_group(explanation: DeviceExplanation) -> str:
    if explanation.group is None:
        return "none"
    if explanation.device_kind == Kind.MDEV:
        return f"{explanation.group}  its own"
    roles = [each.role for each in explanation.members]
    return f"{explanation.group}  {viability_text(explanation.viable, roles)}"


def viability_text(viable: bool, roles: Iterable[str]) -> str:
    """Whether VFIO can use the IOMMU group, or does not need it."""
    if viable:
        return "viable"
    return "NOT viable" if is_blocked(roles) else "not for VFIO: split into vGPUs by its host driver"


def card_text(card: CardExplanation) -> str:
    """The text for a card that is no PCI function."""
    head = f"{card.card}  {_count(card.types, 'type')}, {_count(card.instances, 'instance')}"
    return "\n".join([head, "", *(f"  {line}".rstrip() for line in _card_lines(card))])


def _count(some: Sequence[object], what: str) -> str:
    return f"{len(some)} {what}{'s' * (len(some) != 1)}"


def _card_lines(card: CardExplanation) -> Iterator[str]:
    """Two tables: the types of a card, and its mdevs and vGPUs."""
    types = [(each.id, each.name or "-", str(each.instances), str(each.room)) for each in card.types]
    yield from table(("TYPE", "NAME", "EXISTING", "AVAILABLE"), types).splitlines()
    if card.instances:
        yield ""
        head = ("INSTANCE", "TYPE", "CREATED BY", "STATE")
        yield from table(head, map(_instance_row, card.instances)).splitlines()


def _instance_row(each: CardInstance) -> tuple[str, ...]:
    possible = (
        f"in use by {each.holder}" if each.holder else "",
        "without a driver" if each.dead else "",
        "being removed, still in use" if each.removing else "",
    )
    state = ", ".join(filter(None, possible)) or "-"
    return each.id, each.type or "unknown", each.made_by or "unknown", state


def pod_text(explanation: PodExplanation) -> str:
    """The devices of a pod, by resource."""
    count = sum(len(part.devices) + len(part.gone) for part in explanation.resources)
    lines = [f"{explanation.pod}  uses {count} device{'s' * (count > 1)} of this node"]
    for part in explanation.resources:
        lines += ["", f"  {part.resource}", *(f"    {line}" for line in _pod_resource(part))]
    return "\n".join(lines)


def _pod_resource(part: PodResource) -> Iterator[str]:
    if not part.ours:
        yield f"{', '.join(device.id for device in part.devices)}: allocated by another device plugin"
        return
    for device in part.devices:
        yield f"{device.id}: {'Healthy' if device.reason is None else f'Unhealthy: {device.reason.message}'}"
        if device.reason is not None and device.reason.hint:
            yield f"  to do: {device.reason.hint}"
    for device_id in part.gone:
        yield f"{device_id}: no longer listed"
    yield from (f"env    {key}={value}" for key, value in part.env.items())
    yield from (f"node   {path}" for path in part.nodes)
    yield from (f"cdi    {name}" for name in part.cdi)


def group_text(found: GroupExplanation) -> str:
    """The text for an IOMMU group and each of its devices."""
    roles = [member.role for member in found.members if member.role != _OF_MDEV]
    viable = viability_text(found.viable, roles) if roles else "of one mdev"
    node = f"/dev/vfio/{found.number} {'exists' if found.node else 'does not exist'}"
    rows = [
        (each.id, "" if each.role == _OF_MDEV else role_text(each.role), each.status)
        for each in found.members
    ]
    head = f"IOMMU group {found.number}  {viable}; {node}"
    return "\n".join([head, "", table(("DEVICE", "EFFECT", "RESOURCE / REASON"), rows, indent="  ")])


def resource_text(explanation: ResourceExplanation) -> str:
    """The numbers of the resource, its devices in use, Unhealthy and free, and its rules."""
    free = "unknown (no answer of PodResources)" if explanation.free is None else explanation.free
    numbers = f"capacity {explanation.capacity}, allocatable {explanation.allocatable}, free {free}"
    lines = [f"{explanation.resource}  {numbers}"]
    if explanation.via is Via.DRA:
        lines.append("  advertised by DRA, as devices of ResourceSlices")
    elif explanation.registered is not None:
        error = f": {explanation.registration_error}" if explanation.registration_error else ""
        registered = "registered" if explanation.registered else "not registered"
        lines.append(f"  {registered} with the kubelet{error}")
    for part in (_held(explanation), _unhealthy(explanation), _free(explanation)):
        lines += _below(part)
    for rule in explanation.rules:
        lines += ["", f"  {label(rule.resource, rule.place)}", *(f"    {line}" for line in _rule_lines(rule))]
    if not explanation.rules and explanation.devices:
        lines += ["", "  named by discovery, not by a rule"]
    lines += _below(_possible(explanation))
    return "\n".join(lines)


def _below(lines: Iterator[str]) -> list[str]:
    first, *others = [*lines] or [""]
    return ["", f"  {first}", *(f"    {line}" for line in others)] if first else []


def _held(explanation: ResourceExplanation) -> Iterator[str]:
    by_pod: dict[str, list[str]] = {}
    for device in explanation.devices:
        if device.holder is not None:
            by_pod.setdefault(device.holder, []).append(device.id)
    if by_pod:
        yield f"in use: {sum(map(len, by_pod.values()))}"
    yield from (f"{pod} uses {_ids(explanation, ids)}" for pod, ids in by_pod.items())


def _ids(explanation: ResourceExplanation, ids: Sequence[str]) -> str:
    """All device ids of a resource; of equal shares of a device node, only the first ones."""
    return naming.shorten(ids, _SHOWN) if explanation.device_kind == Kind.NODE else ", ".join(ids)


def _unhealthy(explanation: ResourceExplanation) -> Iterator[str]:
    """The Unhealthy devices; devices with the same reason share one line."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for device in explanation.devices:
        if device.reason is not None:
            by_reason.setdefault((device.reason.message, device.reason.hint), []).append(device.id)
    if by_reason:
        yield f"Unhealthy: {sum(map(len, by_reason.values()))}"
    for (what, hint), ids in by_reason.items():
        yield f"{_ids(explanation, ids)}: {what}"
        if hint:
            yield f"  to do: {hint}"


def _free(explanation: ResourceExplanation) -> Iterator[str]:
    if explanation.free:
        free = [each.id for each in explanation.devices if each.healthy and each.holder is None]
        yield f"free: {naming.shorten(free, _SHOWN)}"


def _possible(explanation: ResourceExplanation) -> Iterator[str]:
    if not explanation.devices:
        yield "no device of this node is offered under this name" + (
            "; possible devices:" if explanation.possibilities else ", and none could be"
        )
    for each in explanation.possibilities:
        yield f"{each.message}: {each.missing}"


def rule_text(explanation: RuleExplanation) -> str:
    """The text for a rule and the devices that it matches."""
    head = label(explanation.resource, explanation.place)
    return "\n".join([head, "", *(f"  {line}" for line in _rule_lines(explanation))])


def _rule_lines(explanation: RuleExplanation) -> Iterator[str]:
    """The devices that the rule matches, and why it does not match others; bridges are not counted."""
    if explanation.device_kind in (Kind.NODE, Kind.CDI):
        note = f"{', ' if explanation.matches else ': '}{explanation.note}" if explanation.note else ""
        yield f"matches  {naming.shorten(explanation.matches, _SHOWN) or 'no path'}{note}"
        return
    listed = f": {naming.shorten(explanation.matches, _SHOWN)}" if explanation.matches else ""
    yield f"matches  {len(explanation.matches)}{listed}"
    for why, count in explanation.rejects.items():
        yield f"rejects  {count}: {why}"
