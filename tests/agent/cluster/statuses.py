# SPDX-License-Identifier: Apache-2.0
"""Statuses of a node, in the parts that are told to the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.problem import Problem, ProblemCode, wrong
from nodeagent.model.resource import ReasonCode
from nodeagent.model.status import (
    NO_CHANGES,
    CardStatus,
    ChangesStatus,
    ClusterStatus,
    ConfigurationStatus,
    DeviceStatus,
    EventsStatus,
    GroupStatus,
    HolderStatus,
    HostStatus,
    KubeletStatus,
    MemberStatus,
    ResourceStatus,
    ResultsStatus,
    Status,
)
from nodeagent.policy import diagnose

GPU = ResourceName("example.com/gpu")
GPU_AT, SOUND_AT, OTHER_AT = "0000:20:00.0", "0000:20:00.1", "0000:30:00.0"
UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


def good(device_id: str = GPU_AT) -> DeviceStatus:
    """A Healthy device."""
    return DeviceStatus(DeviceId(device_id), True, None)


def bad(device_id: str = GPU_AT, code: ReasonCode = ReasonCode.DRIVER_CHANGED) -> DeviceStatus:
    """An Unhealthy one."""
    return DeviceStatus(DeviceId(device_id), False, None, code, f"it is {code}", f"mend {device_id}")


def offered(*devices: DeviceStatus, name: ResourceName = GPU) -> ResourceStatus:
    """A resource with these devices."""
    return ResourceStatus(name, devices, sum(device.healthy for device in devices), True, 1, None, True)


def group(*ids: str) -> GroupStatus:
    """An IOMMU group of these devices."""
    return GroupStatus(
        7, True, tuple(MemberStatus(each, None, "vfio-pci", "vfio", None, each) for each in ids)
    )


def status(
    *devices: DeviceStatus,
    held: dict[str, str] | None = None,
    groups: Sequence[GroupStatus] = (),
    changes: ChangesStatus = NO_CHANGES,
    wrong_settings: Problem | None = None,
    doubts: tuple[str, ...] = (),
    refused: tuple[Problem, ...] = (),
    silent: str = "",
    problems: tuple[str, ...] = (),
) -> Status:
    """A Status; ``held`` is device → pod. ``silent`` is why the API server does not answer."""
    found = Status(
        version="0",
        pid=1,
        uptime_seconds=1.0,
        root="/",
        kubelet=KubeletStatus("/k.sock", True, "answers", True),
        host=HostStatus(1, 1, 0, True, (), EventsStatus("uevents", 0, 0, 0, 0)),
        resources=(offered(*devices),),
        changes=changes,
        holders={each: HolderStatus(pod, GPU) for each, pod in (held or {}).items()},
        subsystems={},
        problems=(),
        configuration=ConfigurationStatus(problem=wrong_settings),
        groups=tuple(groups),
        cluster=ClusterStatus(warnings=doubts, refused=refused, error=silent, enabled=bool(silent)),
    )
    unheard = [each for each in diagnose.problems(found) if each.key == diagnose.API_SERVER]
    return found.with_findings([*unheard, *(wrong(ProblemCode.CHANGE, text, text) for text in problems)])


def cards(
    instances: int,
    *,
    made: int = 0,
    removed: int = 0,
    busy: bool = False,
    types: tuple[str, ...] = ("nvidia-222",),
) -> ChangesStatus:
    """One card with so many mdevs, of which so many were made and removed since the start."""
    results = (ResultsStatus("create-mdev", made), ResultsStatus("remove-mdev", removed))
    return NO_CHANGES._replace(
        cards=(CardStatus("0000:3b:00.0", types, instances, ()),),
        in_progress=("create something",) if busy else (),
        results=results,
    )
