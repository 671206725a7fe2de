# SPDX-License-Identifier: Apache-2.0
"""A Snapshot leaves the process and comes back as it was, with each kind of rule that may be in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodeagent.model import plain
from nodeagent.model.allocation import Allocations, Holder, Knowledge, Reservations
from nodeagent.model.change import Ledger
from nodeagent.model.host import Group, Host, PciFunction
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import (
    CardTypes,
    CdiRule,
    Discovery,
    MdevDefinition,
    MdevRule,
    MdevSelector,
    MdevSpec,
    NodePath,
    NodeRule,
    NodeTypes,
    PciRule,
    PciSelector,
    Spec,
    SriovRule,
    WantedType,
)

ADDRESS, GROUP = PciAddress("0000:01:00.0"), GroupNumber(0)
DESIRED = Spec(
    Discovery(enabled=False, naming="id", classes=()),
    (("a/b", "c/d"),),
    (
        PciRule("a/pci", (PciSelector(vendors=("10de",), numa_nodes=(0,)),), Isolation.NONE, place="c:1"),
        MdevRule("a/mdev", (MdevSelector(types=("t-1",)),), iommufd=Iommufd.AUTO, cdi=True),
        NodeRule("a/node", "/dev/kvm", 110),
        NodeRule("a/nodes", paths=(NodePath("/dev/v*", "/dev/x", "r", True, 3),), per_path=True),
        CdiRule("a/cdi", "v.com/c", ("a*",), ()),
    ),
    MdevSpec(
        True,
        (WantedType("t-1", 4), WantedType("T4-1Q", short=True)),
        (NodeTypes((("zone", "a"),), (WantedType("t-2"),)),),
        excluded=("t-9",),
        cards=(CardTypes((0,), (("10de", "1eb8", None, "12a2"),), (WantedType("t-3"),)),),
        definitions=(MdevDefinition("u", "0000:01:00.0", "t-1"),),
        defined=frozenset({"u", "a"}),
        reserved=frozenset({"0000:01:00.0"}),
    ),
    (SriovRule((PciSelector(),), 0),),
)
FULL = Snapshot(
    Host({ADDRESS: PciFunction(ADDRESS, group=GROUP, inode=7)}, {GROUP: Group(GROUP, (ADDRESS,))}),
    DESIRED,
    {"10de": "NVIDIA"},
    Allocations(
        {
            ResourceName("a/pci"): {ADDRESS: Holder("ns", "p", ResourceName("a/pci"), 0)},
            ResourceName("a/node"): {"x": Holder("ns", "q", ResourceName("a/node"))},
        },
        Knowledge.PARTIAL,
        nodes={ResourceName("a/node"): {"x": ("/dev/x",)}},
    ),
    Reservations(frozenset({"x"}), frozenset({"y"})),
    frozenset({"z"}),
    Ledger({"vf": "1"}, {"1": "one"}, {"vf": ("1", "2")}),
    {"attempt": "no room"},
    "0" * 32,
)


@pytest.mark.parametrize("snapshot", [FULL, Snapshot()], ids=["full", "empty"])
def test_a_snapshot_comes_back_as_it_was(snapshot: Snapshot) -> None:
    assert plain.load(Snapshot, json.loads(json.dumps(plain.dump(snapshot)))) == snapshot


def test_where_a_rule_was_written_comes_along_though_it_does_not_count() -> None:
    rule = plain.load(Snapshot, plain.dump(FULL)).spec.rules[0]
    assert isinstance(rule, PciRule)
    assert rule.place == "c:1"


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {**plain.dump(FULL), "open": 7},
        {**plain.dump(FULL), "spec": {"rules": [{"kind": "scsiRule", "name": "x"}]}},
    ],
    ids=range(4),
)
def test_what_is_no_snapshot_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        plain.load(Snapshot, wrong)
