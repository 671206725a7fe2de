# SPDX-License-Identifier: Apache-2.0
"""Device nodes (/dev/kvm, /dev/dri/renderD*, …) as resources: equal shares of each unit of nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from nodeagent.base.errors import Refused
from nodeagent.model.allocation import DeviceNode, Grant
from nodeagent.model.desired import NodePath, NodeRule
from nodeagent.model.host import Host, differing
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.nodes import DevNode, fits
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import behind, nodeunits
from nodeagent.policy.offer.nodeunits import NodeUnit


def resource(rule: NodeRule, snapshot: Snapshot) -> Resource:
    """The resource of a rule: ``count`` shares of each unit, Healthy while all of its nodes can be given."""
    devices: list[Device] = []
    for unit in nodeunits.units(rule, snapshot):
        reason, numa = _reason(unit, snapshot), behind.numa(unit.nodes, snapshot.host)
        devices += [Device(each, reason, numa) for each in _ids(rule, unit)]
    return Resource(ResourceName(rule.name), rule.kind, tuple(devices))


def takes(rule: NodeRule, snapshot: Snapshot) -> tuple[str, ...]:
    """The paths of its nodes: of those that lead, or of all that one unit is made of."""
    if rule.per_path:
        return tuple(node.path for node in nodeunits.leaders(rule, snapshot))
    found = {node.path: None for unit in nodeunits.units(rule, snapshot) for node in unit.nodes}
    return tuple(found) or tuple(entry.path for entry in rule.entries)


def names(rule: NodeRule, path: str, _: Snapshot) -> bool:
    """True if the rule is for a node of that path."""
    return any(path == entry.path or fits(path, entry.path) for entry in rule.entries)


def share_id(path: str, number: int) -> DeviceId:
    """The id of one share, derived from the path: ``/dev/net/tun`` → ``net_tun-0``, ``net_tun-1``, …"""
    stem = path.removeprefix("/dev/").strip("/").replace("/", "_")
    return DeviceId(f"{stem}-{number}")


def grant(rule: NodeRule, device_ids: Iterable[str], snapshot: Snapshot) -> Grant:
    """What a container gets for these shares: each node once.

    :raises Refused: if two nodes would be at one path there.
    """
    found: dict[str, DeviceNode] = {}
    for unit in _units_of(rule, device_ids, snapshot):
        for node, entry in unit.parts:
            inside = _inside(node, entry)
            given = DeviceNode(node.real, entry.permissions or rule.permissions, inside)
            if found.setdefault(inside, given).path != node.real:
                raise Refused(
                    f"{rule.name}: {found[inside].path} and {node.real} would both be {inside} there",
                    "ask for one of them in a container, or let mountPath end with a slash",
                )
    return Grant(nodes=tuple(_plain(each) for each in found.values()))


def _inside(node: DevNode, entry: NodePath) -> str:
    """Where a container finds a node."""
    if entry.mount_path.endswith("/"):
        return entry.mount_path + node.path.rpartition("/")[2]
    return entry.mount_path or node.path


def sources(rule: NodeRule, device_ids: Iterable[str], snapshot: Snapshot) -> tuple[str, ...]:
    """What decides about these shares: their nodes, and the functions behind them."""
    chosen = _units_of(rule, device_ids, snapshot)
    found = [node for unit in chosen for node in unit.nodes]
    functions = [each.address for each in behind.functions(found, snapshot.host)]
    return tuple(dict.fromkeys((*(node.path for node in found), *functions)))


def nodes(rule: NodeRule, snapshot: Snapshot) -> dict[str, Sequence[DevNode]]:
    """Id of a share → its nodes."""
    return {each: unit.nodes for each, unit in _by_id(rule, snapshot).items()}


def touched(rule: NodeRule, before: Host, now: Host) -> bool:
    """True if something differs that the rule depends on."""
    if before.usb is not now.usb:
        return True
    paths: set[str] = {*(before.nodes ^ now.nodes)}
    if before.dev_nodes is not now.dev_nodes:
        paths |= differing(before.dev_nodes, now.dev_nodes)
    if any(fits(path, entry.path) for entry in rule.entries for path in paths):
        return True
    changed = now.changes_since(before).functions
    return bool(changed) and any(
        not changed.isdisjoint(node.functions)
        for node in now.dev_nodes.values()
        if node.functions and any(fits(node.path, entry.path) for entry in rule.entries)
    )


def _units_of(rule: NodeRule, device_ids: Iterable[str], snapshot: Snapshot) -> list[NodeUnit]:
    known = _by_id(rule, snapshot)
    return list(dict.fromkeys(known[each] for each in device_ids if each in known))


def _by_id(rule: NodeRule, snapshot: Snapshot) -> dict[str, NodeUnit]:
    return {each: unit for unit in nodeunits.units(rule, snapshot) for each in _ids(rule, unit)}


def _ids(rule: NodeRule, unit: NodeUnit) -> Iterator[DeviceId]:
    """Where each node is a Device, the first share has its name as it is: most have one share only."""
    if rule.per_path:
        yield DeviceId(unit.name)
    for number in range(_least(rule), rule.count):
        yield DeviceId(f"{unit.name}-{number}")


def _least(rule: NodeRule) -> int:
    return 1 if rule.per_path else 0


def _plain(node: DeviceNode) -> DeviceNode:
    return replace(node, inside="") if node.inside == node.path else node


def _reason(unit: NodeUnit, snapshot: Snapshot) -> Reason | None:
    if unit.missing:
        return _missing(unit.missing)
    return behind.reason(unit.nodes, snapshot)


def _missing(paths: tuple[str, ...]) -> Reason:
    named = ", ".join(paths)
    hint = "load the kernel module that makes it" if len(paths) == 1 else "load the modules that make them"
    return Reason(
        ReasonCode.NODE_MISSING, f"{named} {'does' if len(paths) == 1 else 'do'} not exist on this host", hint
    )
