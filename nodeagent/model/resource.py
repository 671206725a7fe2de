# SPDX-License-Identifier: Apache-2.0
"""Resource, Device, Reason: the resources offered to the kubelet, and why a device is unavailable.

The list of reasons is fixed and its codes are stable: they appear in logs, ``status`` and ``explain``. A
device without a reason is Healthy; there is no third state.
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
    """The reason why a device is Unhealthy."""

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
    # for a failed binding; an instance that could not be created is no device
    APPLY_FAILED = "apply-failed"
    EXCLUDED = "excluded-by-rule"
    CDI_CONFLICT = "cdi-name-conflict"
    RE_ENUMERATED = "re-enumerated"  # a USB device that a pod uses under its former number
    OTHER_API = "other-api"  # a pod got it by DRA and a device plugin advertises it now, or the reverse
    USED_BY_HOST = "used-by-host"  # a USB device, or a GPU with the firmware's framebuffer in its memory


WAITS = frozenset({ReasonCode.GROUP_HELD, ReasonCode.GOING_AWAY, ReasonCode.OTHER_API})
"""Reasons that end by themselves when a pod ends; no action is required."""


def waits(code: str | None, *, held: bool) -> bool:
    """Return True if the device only waits for a pod to end; ``held``: a pod uses it under this resource.

    If a pod uses the device and another pod uses its group, the device was allocated twice, which is an
    error that does not end by waiting. A removal waits for the pod that uses the device; without a pod, the
    cause is unknown.
    """
    if code == ReasonCode.OTHER_API:
        return True
    return held if code == ReasonCode.GOING_AWAY else code in WAITS and not held


class Isolation(StrEnum):
    """The effect of an allocation on the other devices of the IOMMU group."""

    GROUP = "group"  # they become Unhealthy until it is released
    BUNDLE = "bundle"  # one Device represents the whole group
    NONE = "none"  # no effect: the operator assigns whole boards to one VM


class Iommufd(StrEnum):
    """Whether containers get /dev/iommu and the per-device VFIO nodes."""

    NEVER = "never"
    AUTO = "auto"  # in addition to the group's node, if they exist
    ONLY = "only"  # instead of the group's node


class Via(StrEnum):
    """The API through which the devices of a resource are advertised and allocated."""

    DEVICE_PLUGIN = "device-plugin"
    DRA = "dra"


class Reason(NamedTuple):
    """Why a device is unavailable: a stable ``code`` for programs, and a message with a hint for users."""

    code: ReasonCode
    message: str
    hint: str


class Device(NamedTuple):
    """One device of a Resource as the kubelet counts it, which may consist of several HostDevices. ``numa``
    None means unknown: no topology is advertised.
    """

    id: DeviceId
    reason: Reason | None = None
    numa: int | None = None

    @property
    def healthy(self) -> bool:
        """Return True if the kubelet may allocate the device."""
        return self.reason is None


_DIRECT = frozenset({Kind.NODE, Kind.CDI})


@dataclass(frozen=True)  # without slots, which leave no room for a cached property
class Resource:
    """An extended resource of the kubelet with its Devices, in stable order."""

    name: ResourceName
    kind: Kind
    devices: tuple[Device, ...] = ()
    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    cdi: bool = False
    via: Via = Via.DEVICE_PLUGIN

    @property
    def direct(self) -> bool:
        """Return True if the devices of the resource are not HostDevices, and so have no IOMMU group."""
        return self.kind in _DIRECT

    def device(self, device_id: str) -> Device | None:
        """Return the Device with that id, or None."""
        return self._by_id.get(device_id)

    @cached_property
    def _by_id(self) -> Mapping[str, Device]:
        """Return the Devices by id; computed on first use, so that Allocate takes constant time."""
        return {device.id: device for device in self.devices}


Resources = Mapping[ResourceName, Resource]
