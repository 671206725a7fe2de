# SPDX-License-Identifier: Apache-2.0
"""Offers device nodes (/dev/kvm, /dev/dri/renderD*, …) as resources, in equal shares. A NodeUnit is a set of
device nodes that are allocated together. Pure.

Normally a NodeUnit has all device nodes that a rule names. With ``perPath`` there is one NodeUnit for each
device node that matches the first path, which is called the leading node. A device node that matches another
path is allocated together with the leading node of the same device. If that device is unknown, the first
device node is allocated with the first leading node, the second device node with the second leading node, and
so on. If several rules name the same leading node, only the first of these rules gets the device node. Rules
with the same name form one resource. This module is loaded only if there is a rule for device nodes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from nodeagent.base.errors import AllocationRefused
from nodeagent.model.allocation import DeviceNode, Grant
from nodeagent.model.host import Host
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.nodes import DevNode, fits, is_pattern
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import NodePath, NodeRule
from nodeagent.policy.contradictions import ID_LIMIT
from nodeagent.policy.offer import backing_devices

_NAME_LIMIT = 54  # characters of a name in an id: with a mark, or the number of a share, at most ID_LIMIT
_DIGITS = re.compile(r"(\d+)")


class NodeUnit(NamedTuple):
    """The device nodes that one container gets, each with its entry of the rule; ``missing``: required paths
    that match no device node.
    """

    name: str
    parts: tuple[tuple[DevNode, NodePath], ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[DevNode, ...]:
        """The device nodes of the NodeUnit, without the paths of the rule that they match."""
        return tuple(node for node, _ in self.parts)


def resource(rule: NodeRule, snapshot: Snapshot) -> Resource:
    """The resource of that name: ``count`` shares of each NodeUnit, Healthy while its device nodes exist."""
    devices: list[Device] = []
    for each, unit in _find_units_of_name(rule.name, snapshot):
        reason, numa = _find_reason(unit, snapshot), backing_devices.find_numa(unit.nodes, snapshot.host)
        devices += [Device(device_id, reason, numa) for device_id in _ids(each, unit)]
    return Resource(ResourceName(rule.name), rule.kind, tuple(devices))


def find_paths(rule: NodeRule, snapshot: Snapshot) -> tuple[str, ...]:
    """The paths of the leading nodes of the rule, or of all device nodes of its only NodeUnit."""
    if rule.per_path:
        return tuple(node.path for node in _find_leaders(rule, snapshot))
    found = {node.path: None for unit in build_units(rule, snapshot) for node in unit.nodes}
    return tuple(found) or tuple(entry.path for entry in rule.entries)


def share_id(path: str, number: int) -> DeviceId:
    """The id of one share, derived from the path: ``/dev/net/tun`` → ``net_tun-0``, ``net_tun-1``, …"""
    return DeviceId(f"{_stem(path)}-{number}")


def _stem(path: str) -> str:
    return path.removeprefix("/dev/").strip("/").replace("/", "_")


def grant(rule: NodeRule, device_ids: Iterable[str], snapshot: Snapshot) -> Grant:
    """The Allocate response for these shares, with each device node once.

    :raises AllocationRefused: if two nodes would have one path in the container.
    """
    found: dict[str, DeviceNode] = {}
    for each, unit in _find_units(rule, device_ids, snapshot):
        for node, entry in unit.parts:
            inside = _container_path(node, entry)
            device_node = DeviceNode(node.real, entry.permissions or each.permissions, inside)
            if found.setdefault(inside, device_node).path != node.real:
                raise AllocationRefused(
                    f"{rule.name}: {found[inside].path} and {node.real} would both have the path {inside}",
                    "request only one of them in a container, or end mountPath with a slash",
                )
    plain = (replace(each, inside="") if each.inside == each.path else each for each in found.values())
    return Grant(nodes=tuple(plain))


def are_shared(rule: NodeRule, device_ids: Iterable[str], snapshot: Snapshot) -> bool:
    """True if each of these devices is one of several shares; rules of one name may have different counts."""
    return all(each.count > 1 for each, _ in _find_units(rule, device_ids, snapshot))


def _container_path(node: DevNode, entry: NodePath) -> str:
    """The path of a device node in the container."""
    if entry.mount_path.endswith("/"):
        return entry.mount_path + node.path.rpartition("/")[2]
    return entry.mount_path or node.path


def find_sources(rule: NodeRule, device_ids: Iterable[str], snapshot: Snapshot) -> tuple[str, ...]:
    """The device node paths of these shares, and the PCI addresses of the devices behind the nodes."""
    chosen = _find_units(rule, device_ids, snapshot)
    found = [node for _, unit in chosen for node in unit.nodes]
    functions = [each.address for each in backing_devices.find_functions(found, snapshot.host)]
    return tuple(dict.fromkeys((*(node.path for node in found), *functions)))


def find_nodes(rule: NodeRule, snapshot: Snapshot) -> dict[str, Sequence[DevNode]]:
    """Id of a share → the device nodes of the share."""
    return {each: unit.nodes for each, (_, unit) in _by_id(rule, snapshot).items()}


def _find_units(
    rule: NodeRule, device_ids: Iterable[str], snapshot: Snapshot
) -> list[tuple[NodeRule, NodeUnit]]:
    known = _by_id(rule, snapshot)
    return list(dict.fromkeys(known[each] for each in device_ids if each in known))


def _by_id(rule: NodeRule, snapshot: Snapshot) -> dict[str, tuple[NodeRule, NodeUnit]]:
    units = _find_units_of_name(rule.name, snapshot)
    return {device_id: (each, unit) for each, unit in units for device_id in _ids(each, unit)}


def _find_units_of_name(name: str, snapshot: Snapshot) -> Iterator[tuple[NodeRule, NodeUnit]]:
    """The NodeUnits of all rules with that name, each with its rule."""
    for rule in snapshot.spec.rules:
        if isinstance(rule, NodeRule) and rule.name == name:
            yield from ((rule, unit) for unit in build_units(rule, snapshot))


def _ids(rule: NodeRule, unit: NodeUnit) -> Iterator[DeviceId]:
    """The ids of the shares of a NodeUnit; with ``perPath`` the first id is the name of the leading node."""
    if rule.per_path:
        yield DeviceId(unit.name)
    for number in range(1 if rule.per_path else 0, rule.count):
        yield DeviceId(f"{unit.name}-{number}")


def _find_reason(unit: NodeUnit, snapshot: Snapshot) -> Reason | None:
    if unit.missing:
        return _describe_missing(unit.missing)
    return backing_devices.find_reason(unit.nodes, snapshot)


def _describe_missing(paths: tuple[str, ...]) -> Reason:
    named = ", ".join(paths)
    hint = (
        "load the kernel module that creates it" if len(paths) == 1 else "load the modules that create them"
    )
    return Reason(
        ReasonCode.NODE_MISSING, f"{named} {'does' if len(paths) == 1 else 'do'} not exist on this host", hint
    )


def build_units(rule: NodeRule, snapshot: Snapshot) -> tuple[NodeUnit, ...]:
    """The NodeUnits of a rule: one, or with ``perPath`` one for each leading node."""
    if rule.per_path:
        return _build_led_units(rule, snapshot)
    parts = [(node, entry) for entry in rule.entries for node in _find_nodes(entry.path, snapshot.host)]
    there = [entry for _, entry in parts]
    missing = [entry.path for entry in rule.entries if not entry.optional and entry not in there]
    return (NodeUnit(name_unit(rule), tuple(parts), tuple(missing)),)


def name_unit(rule: NodeRule) -> str:
    """The name of the only NodeUnit: the path if the rule has a single ``path`` and its ids are short."""
    stem = _stem(rule.entries[0].path)
    whole = not rule.paths and len(share_id(rule.path, rule.count - 1)) <= ID_LIMIT
    return stem if whole else _shorten_name(stem)


def _find_nodes(wanted: str, host: Host) -> list[DevNode]:
    """The device nodes that match a path or a pattern, each once, in numerical order."""
    if not is_pattern(wanted):
        node = host.dev_nodes.get(wanted)
        plain = DevNode(wanted) if wanted in host.nodes else None  # for a saved host that has only the paths
        return [each for each in (node or plain,) if each is not None]
    found: dict[str, DevNode] = {}
    for node in host.dev_nodes.values():
        if fits(node.path, wanted) and (node.real not in found or not node.target):
            found[node.real] = node
    return sorted(found.values(), key=lambda node: _numeric_key(node.path))


def _find_leaders(rule: NodeRule, snapshot: Snapshot) -> list[DevNode]:
    """The leading nodes of this rule, without those that are leading nodes of an earlier rule."""
    used: set[str] = set()
    for earlier in snapshot.spec.rules:
        if earlier == rule:
            break
        if isinstance(earlier, NodeRule) and earlier.per_path:
            used |= {node.real for node in _find_nodes(earlier.entries[0].path, snapshot.host)}
    found = _find_nodes(rule.entries[0].path, snapshot.host)
    return [node for node in found if node.real not in used]


def _build_led_units(rule: NodeRule, snapshot: Snapshot) -> tuple[NodeUnit, ...]:
    first, *others = rule.entries
    leading = _find_leaders(rule, snapshot)
    with_each = [(entry, _find_followers(entry, leading, snapshot.host)) for entry in others]
    return tuple(
        _build_unit(node, first, [(entry, found[number]) for entry, found in with_each])
        for number, node in enumerate(leading)
    )


def _build_unit(
    leader: DevNode, first: NodePath, others: Sequence[tuple[NodePath, Sequence[DevNode]]]
) -> NodeUnit:
    parts = [(leader, first), *((node, entry) for entry, nodes in others for node in nodes)]
    missing = [entry.path for entry, nodes in others if not nodes and not entry.optional]
    name = leader.alias or leader.path.removeprefix("/dev/")
    return NodeUnit(_shorten_name(name.replace("/", "_")), tuple(parts), tuple(missing))


def _find_followers(entry: NodePath, leading: Sequence[DevNode], host: Host) -> list[list[DevNode]]:
    """For each leading node, the device nodes of one path of the rule that are allocated together with it."""
    found = _find_nodes(entry.path, host)
    if is_pattern(entry.path) and any(_is_same_device(each, node) for each in leading for node in found):
        return [[node for node in found if _is_same_device(each, node)] for each in leading]
    most = entry.limit or (1 if is_pattern(entry.path) else len(leading))
    seats = [node for node in found for _ in range(most)]
    return [seats[number : number + 1] for number in range(len(leading))]


def _is_same_device(one: DevNode, other: DevNode) -> bool:
    return one.parent is not None and one.parent == other.parent


def _numeric_key(path: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts video2 before video10."""
    pieces = _DIGITS.split(path)
    return tuple((int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces)


def _shorten_name(name: str) -> str:
    """A name as part of a device id, with the characters of a label; a long one is cut and ends in a hash."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-") or "nodes"
    if len(plain) <= _NAME_LIMIT:
        return plain
    return f"{plain[: _NAME_LIMIT - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
