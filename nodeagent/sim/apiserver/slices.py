# SPDX-License-Identifier: Apache-2.0
"""Validates ResourceSlices as the API server does, and drops the fields of disabled feature gates.

The rules are those of pkg/apis/resource/validation and pkg/registry/resource/resourceslice/strategy.go that
a driver can break: immutable fields, the number of devices, unique names, and complete references to
counters.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from nodeagent.sim.apiserver.requests import ApiError
from nodeagent.sim.apiserver.store import Object

TAINTS, COUNTERS = "DRADeviceTaints", "DRAPartitionableDevices"
MOST_DEVICES = 128
MOST_TAINTED = 64  # devices of a slice in which one has a taint or a counter
MOST_COUNTER_SETS, MOST_COUNTERS = 8, 32
_ADDED = "2026-11-28T00:00:00Z"


def admit_slice(new: Object, old: Object | None, disabled: Collection[str]) -> Object:
    """Return the slice as it is stored. ``disabled``: names of feature gates.

    :raises ApiError: if the slice is invalid.
    """
    made = copy.deepcopy(new)
    spec = made["spec"]
    _check_unchanged(spec, old["spec"] if old is not None else spec)
    devices: list[Any] = spec.get("devices", [])
    if TAINTS in disabled:
        _drop(devices, "taints")
    if COUNTERS in disabled:
        _drop(devices, "consumesCounters")
        spec.pop("sharedCounters", None)
    _check_devices(spec, devices)
    for taint in (taint for device in devices for taint in device.get("taints", ())):
        taint.setdefault("timeAdded", _ADDED)
    if not devices:
        spec.pop("devices", None)  # as in Go with omitempty
    return made


def _drop(devices: list[Any], field: str) -> None:
    for device in devices:
        device.pop(field, None)


def _check_unchanged(spec: Object, old: Object) -> None:
    for field, before, after in (
        ("driver", old["driver"], spec["driver"]),
        ("nodeName", old.get("nodeName"), spec.get("nodeName")),
        ("pool.name", old["pool"]["name"], spec["pool"]["name"]),
    ):
        if before != after:
            raise ApiError(422, f"spec.{field}: Invalid value: {after!r}: field is immutable")


def _check_devices(spec: Object, devices: list[Any]) -> None:
    names = [device["name"] for device in devices]
    limited = any("taints" in device or "consumesCounters" in device for device in devices)
    limit = MOST_TAINTED if limited else MOST_DEVICES
    if len(devices) > limit:
        raise ApiError(422, f"spec.devices: Too many: {len(devices)}: must have at most {limit} items")
    if len({*names}) != len(names):
        raise ApiError(422, "spec.devices: Duplicate value")
    sets = spec.get("sharedCounters", [])
    if devices and sets:
        raise ApiError(422, "spec: exactly one of `sharedCounters` and `devices` is required")
    if len(sets) > MOST_COUNTER_SETS or any(len(each["counters"]) > MOST_COUNTERS for each in sets):
        raise ApiError(422, "spec.sharedCounters: Too many")
    if spec["pool"]["resourceSliceCount"] < 1 or spec["pool"].get("generation", 0) < 0:
        raise ApiError(422, "spec.pool: Invalid value")
