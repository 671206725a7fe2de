# SPDX-License-Identifier: Apache-2.0
"""Joins PodResources, the kubelet's checkpoint and prepared claims into one Allocations value. Pure.

``agent.usage`` queries the kubelet, reads the checkpoint, and calls this module. A checkpoint entry has only
the uid of its pod. If PodResources does not list the entry, the pod's name is known only if PodResources
lists another device of the pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from nodeagent.kubelet.checkpoint import Checkpoint, Entry
from nodeagent.model.allocation import Allocations, ByResource, Holder, PodList, by_resource, unnamed
from nodeagent.model.claim import Claim
from nodeagent.model.ids import GroupNumber, ResourceName

T = TypeVar("T")

Table = ByResource[Holder]


def find_unlisted(file: Checkpoint, listed: PodList) -> frozenset[Entry]:
    """The entries of the checkpoint that PodResources does not list."""
    return frozenset(
        each for each in file.entries if each.device_id not in listed.table.get(each.resource, {})
    )


def find_pods(file: Checkpoint, listed: Table, before: Mapping[str, Holder]) -> dict[str, Holder]:
    """Pod uid in the checkpoint → pod, by one of its devices that is listed now or was listed ``before``."""
    pods: dict[str, Holder] = {}
    for entry in file.entries:
        holder = listed.get(entry.resource, {}).get(entry.device_id)
        known = holder if holder is not None and holder.named else before.get(entry.uid)
        if known is not None:
            pods[entry.uid] = known
    return pods


def join(file: Checkpoint, listed: Table, pods: Mapping[str, Holder]) -> Table:
    """The devices that PodResources lists, and the devices that only the checkpoint has."""
    unlisted = [each for each in file.entries if each.device_id not in listed.get(each.resource, {})]
    if not unlisted:
        return listed
    return merge(
        by_resource((each.device_id, _build_holder(each, pods.get(each.uid))) for each in unlisted), listed
    )


def _build_holder(entry: Entry, pod: Holder | None) -> Holder:
    if pod is None:
        return unnamed(entry.resource, entry.numa)
    return replace(pod, resource=entry.resource, numa=entry.numa)


def merge(first: Table, then: Table) -> Table:
    """Merge two tables of devices and pods; for an id in both, the second table counts."""
    if all(ids.keys() <= then.get(name, {}).keys() for name, ids in first.items()):
        return then
    names = dict.fromkeys((*first, *then))
    return {name: {**first.get(name, {}), **then.get(name, {})} for name in names}


def add_responses(
    allocations: Allocations, file: Checkpoint, before: Allocations, *, outdated: bool
) -> Allocations:
    """Add the groups, device nodes and CDI devices of each id, as recorded in the checkpoint's responses.

    Unchanged parts are the same objects as in ``before``. The checkpoint is ``outdated`` if the kubelet did
    not rewrite it in time, so it may lack responses.
    """
    came_with: dict[str, Holder] = {}
    groups: dict[str, frozenset[GroupNumber]] = {}
    nodes: dict[ResourceName, dict[str, tuple[str, ...]]] = {}
    cdi: dict[ResourceName, dict[str, tuple[str, ...]]] = {}
    for entry in file.entries:
        holder = allocations.holder_of(entry.resource, entry.device_id)
        if holder is None:
            continue
        device_id, answer = entry.device_id, entry.answer
        groups[device_id] = groups.get(device_id, frozenset()) | answer.groups
        for table, names in ((nodes, answer.nodes), (cdi, answer.cdi)):
            if names:
                ids = table.setdefault(entry.resource, {})
                ids[device_id] = (*ids.get(device_id, ()), *names)
        for each in answer.host_devices:
            if each not in allocations.holders:
                came_with[each] = replace(holder, came_with=device_id)
    written = frozenset() if outdated else file.listed_devices
    return replace(
        allocations,
        table=_keep_equal(before.table, allocations.table),
        came_with=_keep_equal(before.came_with, came_with),
        groups=_keep_equal(before.groups, groups),
        nodes=_keep_equal(before.nodes, nodes),
        cdi=_keep_equal(before.cdi, cdi),
        written=written if file.stamp is not None else None,
    )


def add_claims(allocations: Allocations, claims: Iterable[Claim], before: Allocations) -> Allocations:
    """Add the devices of prepared claims; a device that a pod also has from its device plugin is the pod's.

    Unchanged parts are the same objects as in ``before``.
    """
    held: list[tuple[str, Holder]] = []
    came_with: dict[str, Holder] = {}
    for claim in claims:
        for device in claim.devices:
            holder = Holder(claim.ref.namespace, claim.ref.name, device.resource, claim=True)
            held.append((device.device_id, holder))
            others = (each for each in device.parts if each != device.device_id)
            came_with |= dict.fromkeys(others, replace(holder, came_with=device.device_id))
    if not held:
        return allocations
    return replace(
        allocations,
        table=_keep_equal(before.table, merge(by_resource(held), allocations.table)),
        came_with=_keep_equal(before.came_with, came_with | dict(allocations.came_with)),
    )


def _keep_equal(before: T, now: T) -> T:
    """The old object if it equals the new one, because readers compare objects by identity."""
    return before if before == now else now
