# SPDX-License-Identifier: Apache-2.0
"""The desired contents of the ResourceSlices of this node, from the same offers as the device plugins. Pure.

A device that cannot be allocated stays in its slice with a taint. The devices of one IOMMU group draw from a
counter, so the scheduler allocates one of them at a time; the counter has the address of the group's lead,
because the number of a group may change at each boot. Where the API server drops counters (before Kubernetes
1.36), one device of such a group is published; where it drops taints, an unusable device is left out.

A device of a prepared claim always stays: the scheduler counts only devices that are in a slice, and would
allocate the rest of the group. A device that a pod has through a device plugin is in no slice.

``writes`` turns the contents into requests to the API server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nodeagent.model.claim import ClaimDevice
from nodeagent.model.resource import Isolation, Reason, ReasonCode
from nodeagent.policy.dra import devices
from nodeagent.policy.dra.devices import DraDevice
from nodeagent.policy.offer import units
from nodeagent.policy.offer.turn import Decision
from nodeagent.policy.offer.units import UnitId

Content = Mapping[str, Any]
"""The part of a slice's ``spec`` that depends on the devices: ``devices`` or ``sharedCounters``."""

TAINTS = "taints"
COUNTERS = "counters"
"""Fields that an API server drops without an error if their feature gate is off."""

# the limits of the API from Kubernetes 1.35 on (pkg/apis/resource/types.go)
MAX_DEVICES = 64  # in a slice, as soon as one of them has a taint or a counter
MAX_COUNTERS = 32  # in a set
MAX_SETS = 8  # in a slice

_NOTHING: frozenset[str] = frozenset()
_OF_OTHERS = frozenset({ReasonCode.GROUP_HELD, ReasonCode.HELD_OUTSIDE})


class _Pool(NamedTuple):
    """The inputs of all functions below, and the devices of claims by part and by name."""

    decision: Decision
    driver: str
    dropped: frozenset[str]
    claimed_as: Mapping[str, str]  # a function or mdev of a claim → the name of the device that contains it
    claimed: Mapping[str, ClaimDevice]
    counted: frozenset[str] = frozenset()  # the names of devices that draw from a counter


class _Counter(NamedTuple):
    """The counter of an IOMMU group."""

    set_name: str
    name: str


def build_slices(decision: Decision, driver: str, dropped: frozenset[str] = _NOTHING) -> tuple[Content, ...]:
    """The contents of all slices; one without devices if there is nothing to publish.

    ``dropped``: ``TAINTS`` or ``COUNTERS``, if the API server drops them.
    """
    pool = _build_pool(decision, driver, dropped)
    offered = devices.list_devices(decision)
    counters = {} if COUNTERS in dropped else _name_counters(offered)
    counted = (each.name for unit in offered for each in unit if each.shares_group and counters)
    pool = pool._replace(counted=frozenset(counted))
    published = [tuple(each for each in unit if _is_published(each, unit, pool)) for unit in offered]
    shown = {each.name for unit in published for each in unit}
    missing = [_build_missing(each, pool) for name, each in pool.claimed.items() if name not in shown]
    contents = [_build_content(chunk, counters, pool) for chunk in _chunk([*published, *missing])]
    return (*contents, *_build_counter_slices(counters, published, pool))


def find_health(decision: Decision) -> dict[str, Reason | None]:
    """Why the devices of prepared claims are unhealthy, by the name of the device; None if one is healthy."""
    pool = _build_pool(decision, "", _NOTHING)
    found = {name: devices.find_device(name, decision) for name in pool.claimed}
    return {
        name: _find_missing_reason(pool.claimed[name], decision)
        if device is None
        else _without_own_use(device, pool)
        for name, device in found.items()
    }


def _build_pool(decision: Decision, driver: str, dropped: frozenset[str]) -> _Pool:
    claims = decision.snapshot.claims.values()
    claimed = {device.name: device for claim in claims for device in claim.devices}
    claimed_as = {part: device.name for device in claimed.values() for part in device.parts}
    return _Pool(decision, driver, dropped, claimed_as, claimed)


# Which devices


def _is_published(device: DraDevice, unit: tuple[DraDevice, ...], pool: _Pool) -> bool:
    if device.name in pool.claimed:
        return True
    holders = map(pool.decision.snapshot.holder, device.parts)
    if any(holder is not None and not holder.claim for holder in holders):
        return False  # a pod has it through a device plugin
    if COUNTERS in pool.dropped and device.shares_group and device != _choose_single(unit):
        return False
    return TAINTS not in pool.dropped or _find_taint(device, pool) is None


def _choose_single(unit: tuple[DraDevice, ...]) -> DraDevice:
    """The only device to publish for a group without a counter: the board, or else the lead."""
    sharing = [each for each in unit if each.shares_group]
    return next((each for each in sharing if each.is_board), sharing[0])


def _build_missing(claimed: ClaimDevice, pool: _Pool) -> tuple[DraDevice, ...]:
    """A device of a claim that is not offered any more, and draws from no counter."""
    lead = pool.decision.snapshot.host.device(claimed.parts[0] if claimed.parts else claimed.device_id)
    unit: UnitId = claimed.device_id if lead is None else units.find_unit_id(lead)
    reason = _find_missing_reason(claimed, pool.decision)
    device = DraDevice(
        claimed.name, claimed.resource, claimed.device_id, claimed.parts, unit, Isolation.NONE, reason=reason
    )
    return (device,)


def _find_missing_reason(claimed: ClaimDevice, decision: Decision) -> Reason:
    if any(decision.snapshot.host.device(each) is not None for each in claimed.parts):
        return Reason(
            ReasonCode.EXCLUDED,
            f"{claimed.resource} does not offer it by DRA any more",
            "it is removed from the ResourceSlices when its claim is released",
        )
    return Reason(
        ReasonCode.GONE,
        "no longer on the host",
        "stop the pod; if the device should be there, check the kernel log",
    )


# Taints


def _find_taint(device: DraDevice, pool: _Pool) -> ReasonCode | None:
    """The code of the taint that keeps the scheduler from the device; None if it can be allocated.

    A claim that has another device of the group needs no taint while both draw from one counter, and
    then no slice is written at each Prepare and Unprepare.
    """
    others = {*_find_claimed(device, pool)} - {device.name}
    if others and not pool.counted >= {device.name, *others}:
        return ReasonCode.GROUP_HELD
    reason = _without_own_use(device, pool)
    return None if reason is None else reason.code


def _find_claimed(device: DraDevice, pool: _Pool) -> Iterator[str]:
    """The names of devices of claims that conflict with the device: parts of it, or of its group."""
    if not pool.claimed:
        return
    alone = device.isolation is Isolation.NONE
    for part in device.parts if alone else units.find_holders(device.unit, pool.decision.snapshot):
        if part in pool.claimed_as:
            yield pool.claimed_as[part]


def _without_own_use(device: DraDevice, pool: _Pool) -> Reason | None:
    """The Reason of the device, unless it is the use of the group by claims only."""
    reason = device.reason
    if reason is None or reason.code is not ReasonCode.GROUP_HELD:
        return reason
    holders = units.find_holders(device.unit, pool.decision.snapshot)
    return None if holders and all(each in pool.claimed_as for each in holders) else reason


# The objects of the API


def _build_content(chunk: list[DraDevice], counters: Mapping[UnitId, _Counter], pool: _Pool) -> Content:
    """The content of a slice; tainted devices come last.

    The scheduler of Kubernetes 1.35 refuses a healthy device of a group if it tries a tainted one first.
    """
    built = [_build_device(each, counters.get(each.unit), pool) for each in chunk]
    return {"devices": sorted(built, key=lambda each: TAINTS in each)}


def _build_device(device: DraDevice, counter: _Counter | None, pool: _Pool) -> dict[str, Any]:
    snapshot = pool.decision.snapshot
    attributes = devices.build_attributes(
        device.parts, device.resource, device.iommufd, snapshot, board=device.is_board
    )
    result: dict[str, Any] = {"name": device.name, "attributes": attributes}
    code = _find_taint(device, pool)
    if code is not None and TAINTS not in pool.dropped:
        key = "group-held" if code in _OF_OTHERS else "unusable"
        taint = {"key": f"{pool.driver}/{key}", "value": str(code), "effect": "NoSchedule"}
        result[TAINTS] = [taint]
    if counter is not None and device.shares_group:
        one = {counter.name: {"value": "1"}}
        result["consumesCounters"] = [{"counterSet": counter.set_name, "counters": one}]
    return result


def _name_counters(offered: Iterable[tuple[DraDevice, ...]]) -> dict[UnitId, _Counter]:
    """The counters of the groups with several devices; they stay while a device is not published."""
    shared = [unit for unit in offered if any(each.shares_group for each in unit)]
    return {
        unit[0].unit: _Counter(f"groups-{place // MAX_COUNTERS}", _counter_name(unit))
        for place, unit in enumerate(shared)
    }


def _counter_name(unit: tuple[DraDevice, ...]) -> str:
    return f"group-{devices.device_name(unit[0].device_id).partition('-')[2]}"


def _build_counter_slices(
    counters: Mapping[UnitId, _Counter], published: Iterable[tuple[DraDevice, ...]], pool: _Pool
) -> Iterator[Content]:
    """The slices with the counters: 1 each, or the number of claims that have a device of the group.

    The scheduler allocates no device with a counter from a pool in which any counter is negative.
    """
    in_use = {
        unit[0].unit: sum(each.shares_group and each.name in pool.claimed for each in unit)
        for unit in published
        if unit
    }
    sets: dict[str, dict[str, dict[str, str]]] = {}
    for unit_id, counter in counters.items():
        value = str(max(1, in_use.get(unit_id, 0)))
        sets.setdefault(counter.set_name, {})[counter.name] = {"value": value}
    built = [{"name": name, "counters": values} for name, values in sets.items()]
    for start in range(0, len(built), MAX_SETS):
        yield {"sharedCounters": built[start : start + MAX_SETS]}


def _chunk(published: Iterable[tuple[DraDevice, ...]]) -> list[list[DraDevice]]:
    """The devices of each slice; a group is in one slice if it fits."""
    chunks: list[list[DraDevice]] = [[]]
    for unit in published:
        for start in range(0, len(unit), MAX_DEVICES):
            part = unit[start : start + MAX_DEVICES]
            if len(chunks[-1]) + len(part) > MAX_DEVICES:
                chunks.append([])
            chunks[-1] += part
    return chunks
