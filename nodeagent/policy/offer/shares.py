# SPDX-License-Identifier: Apache-2.0
"""Generic device nodes (/dev/kvm, /dev/net/tun, …) as resources: equal shares of one node. Pure."""

from __future__ import annotations

from nodeagent.model.desired import NodeRule
from nodeagent.model.host import Kind
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource


def resource(rule: NodeRule, nodes: frozenset[str]) -> Resource:
    """The resource of a rule: ``count`` shares, Healthy while the node exists."""
    reason = None if rule.path in nodes else _missing(rule)
    devices = tuple(Device(share_id(rule.path, number), reason) for number in range(rule.count))
    return Resource(ResourceName(rule.name), Kind.NODE, devices)


def share_id(path: str, number: int) -> DeviceId:
    """The id of one share, derived from the path: ``/dev/net/tun`` → ``net_tun-0``, ``net_tun-1``, …"""
    stem = path.removeprefix("/dev/").strip("/").replace("/", "_")
    return DeviceId(f"{stem}-{number}")


def is_share(rule: NodeRule, device_id: str) -> bool:
    """True if the id is one of the rule's shares."""
    number = device_id.rpartition("-")[2]
    if not number.isdecimal() or int(number) >= rule.count:
        return False
    return share_id(rule.path, int(number)) == device_id


def _missing(rule: NodeRule) -> Reason:
    return Reason(
        ReasonCode.NODE_MISSING,
        f"{rule.path} does not exist on this host",
        "load the kernel module that makes it",
    )
