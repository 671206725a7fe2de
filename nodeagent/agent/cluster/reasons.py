# SPDX-License-Identifier: Apache-2.0
"""Why nodeagent writes an Event: a closed list of reasons, whose names never change. Pure.

They are what people filter by (``kubectl get events --field-selector reason=…``); docs/events.md has the same
table. A new one is a row here, and a function in ``facts`` or ``notices`` that gives it.
"""

from __future__ import annotations

from typing import NamedTuple


class EventReason(NamedTuple):
    """``warning``: a person may be needed. ``means`` is the row of the page.

    ``everywhere``: what gives it reaches all nodes at once, so each waits for a time of its own.
    """

    name: str
    warning: bool
    means: str
    everywhere: bool = False


class Notice(NamedTuple):
    """What is to be told: what has happened, and what to do, if anything.

    ``pod`` is ``namespace/name`` if it is told of a pod; "" tells it of the Node.
    """

    reason: EventReason
    what: str
    do: str = ""
    pod: str = ""

    @property
    def fact(self) -> tuple[EventReason, str, str]:
        """All but what to do: another advice on the same is no news."""
        return self.reason, self.what, self.pod

    @property
    def message(self) -> str:
        """Both parts."""
        return f"{self.what}; {self.do}" if self.do else self.what


DEVICE_UNHEALTHY = EventReason(
    "DeviceUnhealthy",
    True,
    "a device cannot be given, and a person is needed; also on the pod that has it",
)
DEVICE_HEALTHY = EventReason("DeviceHealthy", False, "what was told by `DeviceUnhealthy` is over")
DEVICE_GONE = EventReason(
    "DeviceGone",
    False,
    "a PCI function is no longer listed: it has left the machine, or other rules leave it out",
)
GROUP_CONFLICT = EventReason(
    "GroupConflict",
    True,
    "an IOMMU group has two owners: a host driver has a part of it, or two pods; also on the pods",
)
MDEV_CREATED = EventReason("MdevCreated", False, "mdevs or vGPUs were made on a card")
MDEV_REMOVED = EventReason("MdevRemoved", False, "mdevs or vGPUs were removed from a card")
CHANGE_WAITING = EventReason(
    "ChangeWaiting",
    False,
    "mdevs, vGPUs, VFs or drivers are to be changed, as soon as nobody uses what is there",
)
APPLY_FAILED = EventReason(
    "ApplyFailed", True, "the kernel refuses to change mdevs, vGPUs, VFs or drivers, or does not answer"
)
WISH_UNMET = EventReason(
    "WishUnmet", True, "what is wanted of mdevs, vGPUs, VFs or drivers cannot all be met on this node"
)
CONFIGURATION_REFUSED = EventReason(
    "ConfigurationRefused",
    True,
    "the new configuration is wrong; the one before stays in force",
    everywhere=True,
)
CONFIGURATION_ACCEPTED = EventReason(
    "ConfigurationAccepted", False, "the configuration is right again", everywhere=True
)
CR_ENTRY_REFUSED = EventReason(
    "CREntryRefused",
    True,
    "an entry of the KubeVirt CR cannot be used here; all others count",
    everywhere=True,
)
CR_NOT_IN_FORCE = EventReason(
    "CRNotInForce",
    True,
    "the KubeVirt CR is gone, or makes no sense; what it said last stays in force",
    everywhere=True,
)
VIRT_HANDLER_CONFLICT = EventReason(
    "VirtHandlerConflict",
    True,
    "virt-handler offers, makes or removes what nodeagent is to, so one of the two has to stop",
    everywhere=True,
)
STALE_REMOVED = EventReason(
    "StaleResourceRemoved", False, "a resource that the Node counted as 0 was taken from it; nobody gave it"
)

ALL = tuple(value for value in globals().values() if isinstance(value, EventReason))
"""In the order of this file."""
