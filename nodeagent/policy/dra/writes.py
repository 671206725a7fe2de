# SPDX-License-Identifier: Apache-2.0
"""The requests that turn the stored ResourceSlices of this node into the desired ones. Pure.

The scheduler uses a pool only while all ``resourceSliceCount`` slices of its highest generation exist. So a
change of one slice is written in place, and a change of several slices gets the next generation in all slices
of the pool. The slices have fixed names, so a deleted slice is created again under its name.

The names contain a hash of driver and node, because names that differ only in their dots and hyphens could
become equal otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nodeagent.policy.dra.slices import COUNTERS, TAINTS, Content

GATES = {TAINTS: "DRADeviceTaints", COUNTERS: "DRAPartitionableDevices"}
"""The feature gate of each field that an API server may drop."""
API_VERSION = "resource.k8s.io/v1"
_LIMIT = 253  # of a DNS subdomain, and of a pool name as a whole
_NO_GENERATION = 0

Slice = Mapping[str, Any]
"""A ResourceSlice object of the API."""


class Owner(NamedTuple):
    """The publisher of the pool; ``node_uid`` is the UID of the Node object."""

    driver: str
    node: str
    node_uid: str


class Create(NamedTuple):
    """Create this ResourceSlice."""

    slice: dict[str, Any]


class Update(NamedTuple):
    """Replace the ResourceSlice; its ``resourceVersion`` is that of the stored one."""

    slice: dict[str, Any]


class Delete(NamedTuple):
    """Delete the ResourceSlice, if it still has this version."""

    name: str
    resource_version: str


Write = Create | Update | Delete


def plan_writes(
    old: Sequence[Slice], contents: Sequence[Content], owner: Owner, generation: int = _NO_GENERATION
) -> tuple[Write, ...]:
    """The requests, in order; () if the stored slices are the desired ones.

    ``old``: all stored slices of this driver on this node. ``generation``: the highest generation that this
    process has seen, because the kubelet deletes all slices at its start, and generations must not fall.
    """
    names = _slice_names(contents, owner)
    kept = {_name(each): each for each in old if _name(each) in names and _is_of_pool(each, owner)}
    strays = [each for each in old if kept.get(_name(each)) is not each]
    highest = max([generation, *map(_generation, old)] if old else [generation, 1])
    wanted = {
        name: _build_slice(name, content, owner, highest, len(contents))
        for name, content in zip(names, contents, strict=True)
    }
    differing = [name for name in names if name not in kept or not _is_equal(kept[name], wanted[name])]
    current = all(
        _pool(each) == {**_pool(wanted[name]), "generation": highest} for name, each in kept.items()
    )
    if kept and (len(differing) > 1 or not current):
        for each in wanted.values():
            each["spec"]["pool"]["generation"] = highest + 1
        differing = names
    updates = [_build_update(wanted[name], kept[name]) for name in differing if name in kept]
    creates = [Create(wanted[name]) for name in differing if name not in kept]
    return (*map(_build_delete, strays), *updates, *creates)


def build_probe(owner: Owner) -> dict[str, Any]:
    """A slice with all gated fields, for a dry run: a slice without them would be stored for a moment."""
    taint = {"key": f"{owner.driver}/probe", "effect": "NoSchedule"}
    counters = {"counterSet": "probe", "counters": {"probe": {"value": "1"}}}
    device = {"name": "probe", TAINTS: [taint], "consumesCounters": [counters]}
    (name,) = _slice_names([{}], owner)
    built = _build_slice(f"probe-{name}", {"devices": [device]}, owner, 1, 1)
    return built | {"metadata": {"name": built["metadata"]["name"][:_LIMIT].rstrip("-.")}}


def dropped_fields(sent: Slice, stored: Slice) -> frozenset[str]:
    """The fields (``TAINTS``, ``COUNTERS``) that the API server dropped from the slice that it was sent."""
    before, after = _find_gated_fields(sent), _find_gated_fields(stored)
    return before - after


def pool_name(driver: str, node: str) -> str:
    """The pool of the node; never the node's name alone, which other drivers use.

    Up to 1.36.3 the scheduler mixes the counters of pools with the same name (kubernetes#140434).
    """
    return f"{driver}/{_shorten(node, _LIMIT - len(driver) - 1)}"


def _slice_names(contents: Iterable[Content], owner: Owner) -> list[str]:
    """The names in the order of allocation: the scheduler takes the slices of a pool by name."""
    digest = hashlib.sha256(f"{owner.driver}/{owner.node}".encode()).hexdigest()[:8]
    names: list[str] = []
    for place, _ in enumerate(contents):
        start = f"{place:05}-{owner.driver}-"
        names.append(f"{start}{_cut(owner.node, _LIMIT - len(start) - 9)}-{digest}")
    return names


def _shorten(node: str, limit: int) -> str:
    """The name of the node; one that is too long ends in a hash of it."""
    if len(node) <= limit:
        return node
    return f"{_cut(node, limit - 9)}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"


def _cut(name: str, limit: int) -> str:
    return name[:limit].rstrip("-.")


def _build_slice(name: str, content: Content, owner: Owner, generation: int, count: int) -> dict[str, Any]:
    pool = {
        "name": pool_name(owner.driver, owner.node),
        "generation": generation,
        "resourceSliceCount": count,
    }
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": owner.node,
        "uid": owner.node_uid,
        "controller": True,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": name, "ownerReferences": [node]},
        "spec": {"driver": owner.driver, "nodeName": owner.node, "pool": pool, **content},
    }


def _build_update(wanted: dict[str, Any], stored: Slice) -> Update:
    version = stored["metadata"].get("resourceVersion", "")
    return Update({**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}})


def _build_delete(stored: Slice) -> Delete:
    return Delete(_name(stored), stored["metadata"].get("resourceVersion", ""))


def _name(stored: Slice) -> str:
    return str(stored["metadata"]["name"])


def _spec(stored: Slice) -> Mapping[str, Any]:
    found: Mapping[str, Any] = stored.get("spec") or {}
    return found


def _pool(stored: Slice) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _spec(stored).get("pool") or {}
    return found


def _generation(stored: Slice) -> int:
    """The generation; the API omits none of its fields, but a foreign object is not trusted."""
    found = _pool(stored).get("generation")
    return found if isinstance(found, int) else _NO_GENERATION


def _is_of_pool(stored: Slice, owner: Owner) -> bool:
    """True if the immutable fields are right; otherwise the slice must be deleted."""
    spec, pool = _spec(stored), pool_name(owner.driver, owner.node)
    found = spec.get("driver"), spec.get("nodeName"), _pool(stored).get("name")
    return found == (owner.driver, owner.node, pool)


def _is_equal(stored: Slice, wanted: Slice) -> bool:
    """True if nothing but the pool's numbers differs, and fields that the API server fills in."""
    return _comparable(stored) == _comparable(wanted)


def _comparable(stored: Slice) -> tuple[object, ...]:
    spec, metadata = _spec(stored), stored["metadata"]
    other = {key: value for key, value in spec.items() if key not in ("pool", "devices") and value}
    owners = [_comparable_owner(each) for each in metadata.get("ownerReferences") or ()]
    return owners, other, [_without_times(each) for each in spec.get("devices") or ()]


def _comparable_owner(reference: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in reference.items() if value}


def _without_times(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """The device without the times that the API server adds to its taints."""
    if not device.get(TAINTS):
        return device
    taints = [{key: value for key, value in each.items() if key != "timeAdded"} for each in device[TAINTS]]
    return {**device, TAINTS: taints}


def _find_gated_fields(stored: Slice) -> frozenset[str]:
    spec = _spec(stored)
    devices = spec.get("devices") or ()
    counters = bool(spec.get("sharedCounters")) or any(each.get("consumesCounters") for each in devices)
    taints = any(each.get(TAINTS) for each in devices)
    return frozenset(name for name, found in ((TAINTS, taints), (COUNTERS, counters)) if found)
