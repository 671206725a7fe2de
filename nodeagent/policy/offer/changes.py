# SPDX-License-Identifier: Apache-2.0
"""Compares two Snapshots with the same Spec, to find the devices that must be decided again. Pure.

Unchanged parts of a Snapshot are the same objects, so only changed parts are compared. A Host lists its own
changes (``changes_since``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from nodeagent.model.allocation import ByResource, Holder
from nodeagent.model.host import Host, differing
from nodeagent.model.ids import GroupNumber
from nodeagent.model.nodes import CONTAINER_NODE, IOMMUFD_NODE, DevNode, fits
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, DirectRule, NodeRule
from nodeagent.policy import groups
from nodeagent.policy.offer import units
from nodeagent.policy.offer.units import UnitId

_OF_VFIO = {CONTAINER_NODE, IOMMUFD_NODE}


class Changed(NamedTuple):
    """The units (IOMMU groups) to decide again, and the ids that another pod or no pod uses now.

    ``rebuilt`` units have changed devices. ``rechecked`` units have the same devices and matches as before,
    and only the health may differ. ``rebuilt`` and ``rechecked`` keep the order in which units are decided.
    """

    rebuilt: Mapping[UnitId, None]
    rechecked: Mapping[UnitId, None]
    held: frozenset[str]


def find_changes(before: Snapshot, now: Snapshot) -> Changed:
    """The units of the Snapshot ``now`` that must be decided again after the Snapshot ``before``."""
    rebuilt: dict[UnitId, None] = {}
    rechecked: dict[UnitId, None] | None = None
    if before.host is not now.host:
        rebuilt, rechecked = _find_rebuilt(before.host, now.host), _find_all(before.host, now.host)
    held = _find_changed_tables(before.allocations.table, now.allocations.table)
    held |= _find_changed_holders(before.allocations.came_with, now.allocations.came_with)
    held |= _find_changed_holders(before.reservations.pending, now.reservations.pending)
    if rechecked is None:
        marked = before.reservations.admitting ^ now.reservations.admitting
        marked |= before.reservations.withdrawn ^ now.reservations.withdrawn
        marked |= before.unwanted ^ now.unwanted
        marked |= before.in_slices ^ now.in_slices
        rechecked = _find_units(marked | held, now.host)
        rechecked |= dict.fromkeys(_find_unplugged(before, now, held) & now.host.groups.keys())
        if before.allocations.complete != now.allocations.complete:
            rechecked |= _find_open_units(now.host)
        if before.loans != now.loans or (now.host.usb and (held or _is_node_changed(before, now))):
            rechecked[units.USB] = None
    if rebuilt:
        rechecked = {unit: None for unit in rechecked if unit not in rebuilt}
    return Changed(rebuilt, rechecked, held)


def is_affected(rule: DirectRule, before: Host, now: Host) -> bool:
    """True if a change of the host may change the devices of a rule for nodes or CDI devices."""
    if before.usb is not now.usb:
        return True
    nodes: Iterable[DevNode] = now.dev_nodes.values()
    if isinstance(rule, CdiRule):
        if before.cdi is not now.cdi or before.dev_nodes is not now.dev_nodes:
            return True
    else:
        paths: set[str] = {*(before.nodes ^ now.nodes)}
        if before.dev_nodes is not now.dev_nodes:
            paths |= differing(before.dev_nodes, now.dev_nodes)
        if any(_has_path(rule, path) for path in paths):
            return True
        nodes = (node for node in nodes if node.functions and _has_path(rule, node.path))
    changed = now.changes_since(before).functions
    return bool(changed) and any(not changed.isdisjoint(node.functions) for node in nodes)


def _has_path(rule: NodeRule, path: str) -> bool:
    return any(fits(path, entry.path) for entry in rule.entries)


def _find_unplugged(before: Snapshot, now: Snapshot, held: frozenset[str]) -> set[GroupNumber]:
    """The IOMMU groups whose unplugged devices have changed, or are used by another pod."""
    differ = before.unplugged ^ now.unplugged
    return {group for each, group in differ | now.unplugged if (each, group) in differ or each in held}


def _is_node_changed(before: Snapshot, now: Snapshot) -> bool:
    """True if the device nodes in pods may have changed."""
    if before.allocations.nodes is not now.allocations.nodes:
        return True
    return before.host.dev_nodes is not now.host.dev_nodes or before.host.cdi is not now.host.cdi


def _find_all(before: Host, now: Host) -> dict[UnitId, None] | None:
    """All units if a property of the whole host has changed; else None."""
    same = _host_properties(before) == _host_properties(now)
    return None if same else units.find_unit_ids(now) | units.find_unit_ids(before)


def _host_properties(host: Host) -> tuple[object, ...]:
    lasting = (host.no_iommu, host.vfio_loaded, host.vfio_missing, host.vtd, host.release, host.numa_nodes)
    return host.nodes & _OF_VFIO, *lasting, host.boot_framebuffers, host.mdev_parents.keys()


def _find_rebuilt(before: Host, now: Host) -> dict[UnitId, None]:
    changes = now.changes_since(before)
    versions = ((host.device(each), host) for each in changes.devices for host in (before, now))
    return {
        unit: None
        for host_device, host in versions
        if host_device is not None
        for unit in units.find_dependents(host_device, host)
    } | dict.fromkeys(changes.groups)


def _find_changed_holders(before: Mapping[str, Holder], now: Mapping[str, Holder]) -> frozenset[str]:
    """The ids that another pod, or no pod, uses now; new Holder objects often equal the old ones."""
    if before is now:
        return frozenset()
    changed = differing(before, now)
    both = changed & before.keys() & now.keys()
    return frozenset(changed.difference(each for each in both if before[each] == now[each]))


def _find_changed_tables(before: ByResource[Holder], now: ByResource[Holder]) -> frozenset[str]:
    if before is now:
        return frozenset()
    names = before.keys() | now.keys()
    return frozenset[str]().union(
        *(_find_changed_holders(before.get(each, {}), now.get(each, {})) for each in names)
    )


def _find_open_units(host: Host) -> dict[UnitId, None]:
    """The units with an open device: only their health depends on whether all allocations are known."""
    functions = host.functions.values()
    opened = filter(groups.is_open, functions)
    return {unit: None for each in opened for unit in units.find_dependents(each, host)}


def _find_units(ids: frozenset[str], host: Host) -> dict[UnitId, None]:
    of_devices = (unit for each in host.devices_of(ids) for unit in units.find_dependents(each, host))
    whole = (
        GroupNumber(int(each)) for each in filter(str.isdecimal, ids)
    )  # ids of groups (groups.whole_group_id)
    return dict.fromkeys(chain(of_devices, whole))
