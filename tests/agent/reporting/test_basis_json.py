# SPDX-License-Identifier: Apache-2.0
"""What is in force leaves the daemon and comes back; the verdicts in the other process are the daemon's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.agent.reporting import basis
from nodeagent.agent.reporting.basis import Basis
from nodeagent.base.errors import ConfigError
from nodeagent.config import Value
from nodeagent.model.host import Group, Host, Mdev, PciFunction
from nodeagent.model.ids import GroupNumber, PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import PciRule, PciSelector, Spec
from nodeagent.policy.explain import devices
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.turn import Decision

GPU, OTHER = PciAddress("0000:01:00.0"), PciAddress("0000:02:00.0")
UUID = "00000001-0000-4000-8000-000000000001"
VALUES = (Value("timing.settle", "1s", "default"), Value("resources", [{"name": "a/b"}], "config.yaml:1"))


def function(address: PciAddress, group: int, driver: str) -> PciFunction:
    return PciFunction(
        address,
        vendor="10de",
        device="1eb8",
        pci_class="030200",
        driver=driver,
        vfio=driver == "vfio-pci",
        group=GroupNumber(group),
        enable=0,
    )


def host(driver: str, mdev_type: str) -> Host:
    groups = [
        Group(GroupNumber(number), (member,), node=True)
        for number, member in enumerate((GPU, OTHER, UUID), 1)
    ]
    return Host(
        {GPU: function(GPU, 1, driver), OTHER: function(OTHER, 2, "vfio-pci")},
        {group.number: group for group in groups},
        {UUID: Mdev(UUID, OTHER, mdev_type, mdev_type, "vfio_mdev", GroupNumber(3), vendor="10de")},
        nodes=frozenset({"/dev/vfio/vfio"}),
        iommu=True,
        vfio_loaded=True,
    )


def decided(spec: Spec) -> Decision:
    """A function has lost its VFIO driver since it was offered, and an mdev has another type."""
    first = turn.decide_first(Snapshot(host("vfio-pci", "nvidia-222"), spec, {"10de": "NVIDIA Corporation"}))
    return turn.decide_next(first, replace(first.snapshot, host=host("nouveau", "nvidia-223")))


def returned(decision: Decision) -> Basis:
    value = Basis(decision.snapshot, decision.matched, VALUES, ("odd",))
    return basis.load(json.loads(json.dumps(basis.dump(value))))


@pytest.mark.parametrize(
    "spec",
    [
        Spec(),
        Spec(rules=(PciRule("a.b/c", (PciSelector(addresses=(OTHER,)),), place="config.yaml:3"),)),
    ],
    ids=["discovery", "a rule"],
)
def test_the_verdicts_in_another_process_are_the_daemons(spec: Spec) -> None:
    daemon = decided(spec)
    there = returned(daemon)
    here = turn.decide_first(there.snapshot, there.matched)
    assert here.offers == daemon.offers
    for device in (GPU, OTHER, UUID):
        assert devices.explain(device, here) == devices.explain(device, daemon)
    kept = devices.explain(GPU, here)
    assert kept is not None
    assert kept.reason is not None
    assert (kept.reason.code, kept.rules[-1][0]) == ("driver-changed", "memory")


def test_settings_come_with_their_sources_and_warnings() -> None:
    there = returned(decided(Spec()))
    assert (there.values, there.warnings) == (VALUES, ("odd",))


@pytest.mark.parametrize(
    "wrong", [None, {}, {"format": "x"}, {"format": basis.FORMAT, "matched": 1}], ids=str
)
def test_what_is_nothing_of_the_kind_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="answer"):
        basis.load(wrong)
