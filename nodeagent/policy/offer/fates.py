# SPDX-License-Identifier: Apache-2.0
"""What becomes of each device, in a few words: the rows of ``nodeagent scan``. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from nodeagent.model.host import Group, Host, HostDevice, Mdev, PciFunction
from nodeagent.model.resource import ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.usb import UsbDevice
from nodeagent.policy import classes, groups, selectors
from nodeagent.policy.offer import kinds, matches
from nodeagent.policy.offer.turn import Decision


class Fate(NamedTuple):
    """What becomes of one device.

    ``name`` is that of the device or type. ``resource`` None: it is not offered, and ``why`` says why not;
    else ``why`` says why it is Unhealthy, and is "" if it is not. ``by`` is what takes it: "rule NAME",
    "discovery", or "" if it stays listed for another reason.
    """

    id: str
    name: str | None
    resource: str | None
    by: str
    code: ReasonCode | None
    why: str
    holder: str | None

    @property
    def offered(self) -> bool:
        """True if the kubelet is told of it."""
        return self.resource is not None

    def __str__(self) -> str:
        if self.resource is None:
            return f"not offered: {self.why}"
        held = f", held by {self.holder}" if self.holder else ""
        return f"{self.resource}{held}" + (f": {self.why}" if self.why else "")


def fates(decision: Decision) -> Iterator[Fate]:
    """Those of all devices: functions, mdevs, mdevs that wait for their removal, USB devices."""
    host = decision.snapshot.host
    mdevs = chain(host.mdevs.values(), host.leaving.values())
    devices: Iterator[HostDevice] = chain(host.functions.values(), mdevs, host.usb.values())
    return (fate(host_device, decision) for host_device in devices)


def fate(host_device: HostDevice, decision: Decision) -> Fate:
    """That of one device of the Decision's host."""
    snapshot = decision.snapshot
    offer = decision.offer_with(host_device.id)
    name = kinds.of(host_device).text(host_device, snapshot.names)
    if offer is None:
        return Fate(host_device.id, name, None, "", None, _why(host_device, snapshot), None)
    reason, holder = offer.device.reason, snapshot.holder(host_device.id)
    return Fate(
        host_device.id,
        name,
        offer.match.resource,
        f"rule {offer.match.rule.name}" if isinstance(host_device, UsbDevice) else _by(host_device, snapshot),
        reason.code if reason else None,
        reason.what if reason else "",
        str(holder) if holder else None,
    )


def _by(host_device: HostDevice, snapshot: Snapshot) -> str:
    group = _group(host_device, snapshot.host)
    for rule, refusal in matches.verdicts(host_device, group, snapshot.desired, snapshot.names):
        if refusal is None:
            return "discovery" if rule is None else f"rule {rule.name}"
    return ""


def _why(host_device: HostDevice, snapshot: Snapshot) -> str:
    """The first thing that keeps it from being offered; what could be mended goes last."""
    if isinstance(host_device, Mdev) and host_device.leaving:
        return "going away, still in use"
    if host_device.unreadable is not None:
        return host_device.unreadable
    if isinstance(host_device, PciFunction) and host_device.bridge:
        return "bridge"
    if isinstance(host_device, UsbDevice):
        return matches.untaken(host_device, snapshot.desired)
    if not snapshot.desired.discovery.enabled:
        return "no rule, and discovery is off"
    if isinstance(host_device, PciFunction):
        return _why_function(host_device, snapshot)
    return _undiscovered(host_device, snapshot)


def _why_function(function: PciFunction, snapshot: Snapshot) -> str:
    if not selectors.in_classes(snapshot.desired.discovery.classes, function):
        return f"class {(function.pci_class or '?')[:4]} not discovered"
    mdevs = sum(mdev.parent == function.address for mdev in snapshot.host.mdevs.values())
    if groups.ready(function) or groups.takes_vgpu(function):
        return _undiscovered(function, snapshot)
    if parts := classes.carried(function, mdevs):
        return f"carries {parts}"
    return f"driver {function.driver}" if function.driver else "no driver"


def _undiscovered(host_device: HostDevice, snapshot: Snapshot) -> str:
    group = _group(host_device, snapshot.host)
    return matches.discoverable(host_device, group, snapshot.desired) or "not looked at yet"


def _group(host_device: HostDevice, host: Host) -> Group | None:
    return host.groups.get(host_device.group) if host_device.group is not None else None
