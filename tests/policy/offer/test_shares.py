# SPDX-License-Identifier: Apache-2.0
"""Shares of device nodes: their ids, and their health."""

from __future__ import annotations

import pytest

from nodeagent.model.desired import Desired, NodeRule
from nodeagent.model.host import Host, Kind
from nodeagent.model.resource import ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import shares
from tests.facts import names
from tests.policy.samples import ids

TUN = NodeRule("devices.example.com/tun", "/dev/net/tun", count=3)


def _snapshot(*nodes: str) -> Snapshot:
    """A host that was saved with no more than the names of its nodes."""
    return Snapshot(Host(nodes=frozenset(nodes)), Desired(rules=(TUN,)))


def test_a_node_that_exists_is_offered_as_so_many_healthy_shares() -> None:
    found = shares.resource(TUN, _snapshot("/dev/net/tun"))
    assert (found.name, found.kind) == (TUN.name, Kind.NODE)
    assert ids(found.devices) == ["net_tun-0", "net_tun-1", "net_tun-2"]
    assert all(device.healthy and device.numa is None for device in found.devices)


def test_a_node_that_is_missing_is_listed_unhealthy_and_named() -> None:
    found = shares.resource(TUN, _snapshot("/dev/net"))
    reasons = {device.reason for device in found.devices}
    (reason,) = reasons
    assert reason is not None
    assert reason.code is ReasonCode.NODE_MISSING
    names(reason.what, "/dev/net/tun")


@pytest.mark.parametrize(
    ("device_id", "share"),
    [
        ("net_tun-0", True),
        ("net_tun-2", True),
        ("net_tun-3", False),
        ("net_tun-00", False),
        ("net_tun-", False),
        ("net_tun", False),
        ("net_tun--1", False),
        ("kvm-0", False),
        ("", False),
        ("0000:65:00.0", False),
    ],
)
def test_only_its_own_ids_are_shares_of_a_rule(device_id: str, share: bool) -> None:
    assert (shares.resource(TUN, _snapshot("/dev/net/tun")).device(device_id) is not None) is share
