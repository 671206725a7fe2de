# SPDX-License-Identifier: Apache-2.0
"""Offers of one group: one Device per function or one per group; NUMA nodes; what pods keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.allocation import Knowledge
from nodeagent.model.host import MdevType
from nodeagent.model.ids import DeviceId, GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Device, Isolation, ReasonCode
from nodeagent.model.spec import (
    Discovery,
    GroupScope,
    MdevSpec,
    PassthroughRule,
    PciRule,
    PciSelector,
    Spec,
    WantedType,
)
from nodeagent.policy.offer import turn, units
from tests.facts import contains
from tests.policy.samples import GPU, RULE, UUID, function, holders, host, ids, mdev, reserved, snapshot

ONE = GroupNumber(1)
PAIR = (function("0000:65:00.0"), function("0000:66:00.0"))


def wish(isolation: Isolation) -> Spec:
    return Spec(Discovery(enabled=False), rules=(replace(RULE, isolation=isolation),))


@pytest.mark.parametrize(
    ("isolation", "devices"),
    [
        (Isolation.GROUP, [("0000:65:00.0",), ("0000:66:00.0",)]),
        (Isolation.NONE, [("0000:65:00.0",), ("0000:66:00.0",)]),
        (Isolation.BUNDLE, [("0000:65:00.0", "0000:66:00.0")]),
    ],
)
def test_isolation_decides_what_a_device_stands_for(
    isolation: Isolation, devices: list[tuple[str, ...]]
) -> None:
    found = units.build_offers(ONE, snapshot(host(*PAIR), wish(isolation)))
    assert [offer.host_devices for offer in found] == devices
    assert [offer.device.id for offer in found] == [device[0] for device in devices]
    assert all(offer.device.healthy for offer in found)


def test_a_bundle_holds_only_what_its_own_rule_takes() -> None:
    audio = function("0000:65:00.1", pci_class="040300", vendor="1022")
    other = PciRule("example.com/audio", (PciSelector(vendors=("1022",)),))
    spec = Spec(Discovery(enabled=False), rules=(*wish(Isolation.BUNDLE).rules, other))
    found = units.build_offers(ONE, snapshot(host(PAIR[0], audio, PAIR[1]), spec))
    by_name = {offer.match.resource: offer.host_devices for offer in found}
    assert by_name == {GPU: ("0000:65:00.0", "0000:66:00.0"), "example.com/audio": ("0000:65:00.1",)}


def test_one_bad_function_makes_its_bundle_unhealthy() -> None:
    bad = PAIR[1]._replace(driver=None, vfio=False)
    (found,) = units.build_offers(ONE, snapshot(host(PAIR[0], bad), wish(Isolation.BUNDLE)))
    assert found.device.reason is not None
    assert found.device.reason.code is ReasonCode.DRIVER_CHANGED


def test_a_function_without_a_group_is_listed_with_the_reason() -> None:
    lonely = function(group=None)
    (found,) = units.build_offers(units.find_unit_id(lonely), snapshot(host(lonely)))
    assert found.device.reason is not None
    assert found.device.reason.code is ReasonCode.NO_GROUP


def test_a_function_whose_group_could_not_be_read_is_not_forgotten() -> None:
    (found,) = units.build_offers(ONE, snapshot(host(function(), groups={})))
    assert found.device.reason is not None
    assert found.device.reason.code is ReasonCode.NO_GROUP


@pytest.mark.parametrize(("node", "announced"), [(0, 0), (1, 1), (None, None), (7, None)])
def test_only_a_numa_node_that_the_host_has_is_announced(node: int | None, announced: int | None) -> None:
    (found,) = units.build_offers(ONE, snapshot(host(function(numa_node=node))))
    assert found.device.numa == announced


def test_units_are_groups_and_functions_without_one() -> None:
    here = host(*PAIR, function("0000:67:00.0", group=None), function("0000:68:00.0", group=9))
    assert list(units.find_unit_ids(here)) == [1, "0000:67:00.0", 9]


def test_lists_are_in_address_order_with_long_domains_last() -> None:
    devices = [Device(DeviceId(each)) for each in ("10000:01:00.0", "0000:66:00.0", "0000:65:00.0")]
    assert ids(units.sort_devices([*devices, devices[0]])) == [
        "0000:65:00.0",
        "0000:66:00.0",
        "10000:01:00.0",
    ]


def test_another_iommu_or_kernel_is_another_verdict_on_what_firmware_has_mapped() -> None:
    free = host(function(), release="6.1.0")
    old = replace(free, groups={n: group._replace(direct=True) for n, group in free.groups.items()})
    decision = turn.decide_first(snapshot(old))
    for other, kept in (({"vtd": True}, True), ({}, False), ({"release": "6.12.95"}, True)):
        decision = turn.decide_next(decision, snapshot(replace(old, **other)))
        (device,) = decision.resources[ResourceName(GPU)].devices
        assert device.healthy is not kept


PHYSICAL, VIRTUAL = PciAddress("0000:65:00.0"), PciAddress("0000:65:00.4")


def test_a_pf_waits_while_one_of_its_vfs_in_another_group_is_held_or_open() -> None:
    physical = function(PHYSICAL, vfs=(VIRTUAL,))
    virtual = function(VIRTUAL, 2, physfn=PHYSICAL, pf_driver="vfio-pci")
    idle, opened = host(physical, virtual), host(physical, virtual._replace(enable=1))
    steps = (
        (snapshot(idle), None),
        (snapshot(idle, holders=holders(VIRTUAL)), ReasonCode.GROUP_HELD),
        (snapshot(idle), None),
        (snapshot(idle, reservations=reserved([VIRTUAL])), ReasonCode.GROUP_HELD),
        (snapshot(opened), ReasonCode.HELD_OUTSIDE),
        (snapshot(opened, knowledge=Knowledge.PARTIAL), ReasonCode.GROUP_HELD),
        (snapshot(opened), ReasonCode.HELD_OUTSIDE),
        (snapshot(idle), None),
    )
    decision = turn.decide_first(steps[0][0])
    for now, code in steps:
        decision = turn.decide_next(decision, now)
        offer = decision.offer_of(PHYSICAL)
        assert offer is not None
        assert (offer.device.reason and offer.device.reason.code) == code
        assert decision.offers == turn.decide_first(now).offers
        assert (VIRTUAL in turn.find_awaited(decision)) or code is None


@pytest.mark.parametrize("blocking", [False, True])
def test_whoever_is_told_to_bind_a_function_hears_of_the_mdevs_that_it_carries_now(blocking: bool) -> None:
    card = function(driver="nvidia")
    functions = (card, function("0000:65:00.1")) if blocking else (card,)
    rule = replace(RULE, selectors=(PciSelector(addresses=(functions[-1].address,)),))
    spec = Spec(Discovery(enabled=False), rules=(rule,))
    empty = host(*functions)
    full = replace(empty, mdevs={UUID: mdev(group=None)})  # nothing else is another object
    first = turn.decide_first(snapshot(empty, spec))
    then = turn.decide_next(first, replace(first.snapshot, host=full))
    last = turn.decide_next(then, first.snapshot)
    hints = [
        offer.device.reason.hint
        for decision in (first, then, last)
        if (offer := decision.offer_of(functions[-1].address)) is not None and offer.device.reason is not None
    ]
    assert [contains(hint, "1 mdev") for hint in hints] == [False, True, False]


@pytest.mark.parametrize(("group", "advice"), [(GroupScope.WHOLE, "plan"), (GroupScope.MATCHED, "bind")])
def test_the_plan_is_named_only_where_the_rule_binds_the_function(group: GroupScope, advice: str) -> None:
    rule = PassthroughRule((PciSelector(addresses=("0000:65:00.0",)),), group=group)
    other = function("0000:65:00.1", driver="e1000e", pci_class="020000")
    spec = wish(Isolation.GROUP)._replace(passthrough=(rule,))
    found = units.build_offers(ONE, snapshot(host(function("0000:65:00.0"), other), spec))
    (reason,) = {offer.device.reason for offer in found[:1]}
    assert reason is not None
    assert reason.code is ReasonCode.GROUP_NOT_VIABLE
    assert contains(reason.hint, advice)


@pytest.mark.parametrize(("offered", "leave"), [("nvidia-222", True), ("i915-GVTg_V5_4", False)])
def test_only_a_card_that_offers_a_desired_type_is_left_on_its_driver(offered: str, leave: bool) -> None:
    card = function("0000:65:00.0", driver="i915")
    parents = {card.address: (MdevType(offered),)}
    mdevs = MdevSpec(manage=True, types=(WantedType("nvidia-222"),))
    spec = wish(Isolation.GROUP)._replace(mdevs=mdevs)
    (found,) = units.build_offers(ONE, snapshot(host(card, mdev_parents=parents), spec))
    assert found.device.reason is not None
    assert contains(found.device.reason.hint, "leave it on its driver") is leave
