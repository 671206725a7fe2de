# SPDX-License-Identifier: Apache-2.0
"""Resource, Device, Reason: what is offered to the kubelet, and why a device cannot be given.

The list of reasons is closed and its codes are stable: they appear in logs, ``status`` and ``explain``.
A device without a reason is Healthy; there is no third state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from nodeagent.model.host import Kind
from nodeagent.model.ids import DeviceId, ResourceName


class ReasonCode(StrEnum):
    """Why a device is Unhealthy."""

    NODE_MISSING = "node-missing"
    DRIVER_CHANGED = "driver-changed"
    NO_GROUP = "no-iommu-group"
    FIRMWARE_MAPPED = "mapped-by-firmware"
    GROUP_NOT_VIABLE = "group-not-viable"
    NEEDS_TOKEN = "needs-vf-token"
    GROUP_HELD = "group-held"
    HELD_OUTSIDE = "held-outside-kubernetes"
    GOING_AWAY = "going-away"
    GONE = "fallen-off-the-bus"
    RECOVERY_FAILED = "failed-recovery"
    UNREADABLE = "unreadable"
    MDEV_TYPE_CHANGED = "mdev-type-changed"
    TYPE_NAME_UNKNOWN = "type-name-unknown"
    APPLY_FAILED = "apply-failed"  # of a binding, when there are any: what could not be made is no device
    EXCLUDED = "excluded-by-rule"
    CDI_CONFLICT = "cdi-name-conflict"
    RE_ENUMERATED = "re-enumerated"  # of a USB device that a pod has by its former number
    USED_BY_HOST = "used-by-host"  # a USB device, or a GPU in whose memory the firmware shows


WAITS = frozenset({ReasonCode.GROUP_HELD, ReasonCode.GOING_AWAY})
"""Reasons that end by themselves when a pod ends: as it should be, without an action."""


def waits(code: str | None, *, held: bool) -> bool:
    """True if a device of that reason only waits; ``held``: a pod has it, by the resource that lists it.

    A device that a pod has and whose group another pod uses was allocated twice: that is an error, and does
    not end by waiting. A removal waits for the pod that has the device; without one, the cause is unknown.
    """
    return held if code == ReasonCode.GOING_AWAY else code in WAITS and not held


class Isolation(StrEnum):
    """What happens to the other devices of an IOMMU group when one of them is allocated."""

    GROUP = "group"  # they become Unhealthy until it is released
    BUNDLE = "bundle"  # one Device stands for all of the group
    NONE = "none"  # nothing: the operator gives whole boards to one VM


class Iommufd(StrEnum):
    """Whether /dev/iommu and the per-device VFIO nodes are handed out."""

    NEVER = "never"
    AUTO = "auto"  # beside the group's node, where they exist
    ONLY = "only"  # instead of the group's node


class Reason(NamedTuple):
    """Why a device cannot be given, for machines (``code``) and for people: what, and what to do."""

    code: ReasonCode
    message: str
    hint: str


class Device(NamedTuple):
    """One unit of a Resource. ``numa`` None means unknown: no topology is announced."""

    id: DeviceId
    reason: Reason | None = None
    numa: int | None = None

    @property
    def healthy(self) -> bool:
        """True if the kubelet may give it away."""
        return self.reason is None


_DIRECT = frozenset({Kind.NODE, Kind.CDI})


@dataclass(frozen=True)  # no slots: they leave no room for a cached property
class Resource:
    """A kubelet extended resource with its Devices, in stable order."""

    name: ResourceName
    kind: Kind
    devices: tuple[Device, ...] = ()
    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    cdi: bool = False

    @property
    def direct(self) -> bool:
        """True if its devices are no HostDevices: they have no group, and say nothing of who asks next."""
        return self.kind in _DIRECT

    def device(self, device_id: str) -> Device | None:
        """The Device of that id, or None."""
        return self._by_id.get(device_id)

    @cached_property
    def _by_id(self) -> Mapping[str, Device]:
        """Found when first asked for: an Allocate must not cost more where there are more devices."""
        return {device.id: device for device in self.devices}


Resources = Mapping[ResourceName, Resource]
