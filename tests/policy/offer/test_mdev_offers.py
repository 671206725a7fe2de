# SPDX-License-Identifier: Apache-2.0
"""Mediated devices and vendor vGPUs as devices of the kubelet: names, health, what is remembered, grants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.base.errors import AllocationRefused
from nodeagent.model.host import Group, Host, Kind, Mdev
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Iommufd, Isolation, Reason, ReasonCode
from nodeagent.model.spec import Discovery, MdevRule, MdevSelector, PciRule, PciSelector, Spec
from nodeagent.policy.offer import grants, turn
from nodeagent.policy.offer.turn import Decision
from tests.facts import names
from tests.policy.samples import NODES, UUID, function, holders, host, mdev, snapshot, vgpu

OTHER = UUID[:-1] + "d"
T4_1Q = "nvidia.com/GRID_T4-1Q"
VGPU = "nvidia.com/NVIDIA_A40-1B"
NAMES = {"10de": "NVIDIA Corporation", "8086": "Intel Corporation", "vgpu:1147": "NVIDIA A40-1B"}
ALL = Spec()
RULE = MdevRule("example.com/vgpu", (MdevSelector(types=("nvidia-222",)),))
RULED = Spec(Discovery(enabled=False), rules=(RULE,))


def decided(*host_devices: Any, wish: Spec = ALL, **other: Any) -> Decision:
    return turn.decide_first(snapshot(host(*host_devices), wish, names=NAMES, **other))


def after(before: Decision, now: Host, **other: Any) -> Decision:
    return turn.decide_next(before, snapshot(now, before.snapshot.spec, names=NAMES, **other))


def reasons(decision: Decision) -> dict[str, dict[str, ReasonCode | None]]:
    """Resource → device → code of its reason; without empty resources."""
    return {
        name: {each.id: each.reason.code if each.reason else None for each in found.devices}
        for name, found in decision.resources.items()
        if found.devices
    }


def reason(decision: Decision, device_id: str = UUID) -> Reason | None:
    found = decision.offer_of(device_id)
    assert found is not None
    return found.device.reason


def test_every_mdev_is_discovered_under_the_name_of_its_type() -> None:
    found = decided(mdev(), mdev(OTHER, 51, type_id="nvidia-223", type_name="GRID T4-2Q"))
    assert reasons(found) == {T4_1Q: {UUID: None}, "nvidia.com/GRID_T4-2Q": {OTHER: None}}
    assert found.resources[ResourceName(T4_1Q)].kind is Kind.MDEV
    assert found.resources[ResourceName(T4_1Q)].devices[0].numa == 0


@pytest.mark.parametrize(
    ("vendor", "type_id", "type_name", "name"),
    [
        ("8086", "i915-GVTg_V5_4", None, "intel.com/i915-GVTg_V5_4"),
        ("10de", "nvidia-222", "GRID  T4-1Q", "nvidia.com/GRID_T4-1Q"),
        ("10de", "nvidia-474", "NVIDIA A100-1-5CME", "nvidia.com/NVIDIA_A100-1-5CME"),
        (None, "mtty-1", "Single port serial", "mdev.nodeagent/Single_port_serial"),
    ],
)
def test_the_domain_is_that_of_the_parents_vendor(
    vendor: str | None, type_id: str, type_name: str | None, name: str
) -> None:
    found = decided(mdev(vendor=vendor, type_id=type_id, type_name=type_name))
    assert list(reasons(found)) == [name]


def test_id_style_names_an_mdev_by_its_type_id() -> None:
    wish = Spec(Discovery(naming="id", prefix="a.b"))
    assert list(reasons(decided(mdev(), wish=wish))) == ["a.b/nvidia-222"]


def test_a_rule_takes_mdevs_of_several_types_for_one_resource() -> None:
    rule = replace(RULE, selectors=(MdevSelector(types=("nvidia-222",)), MdevSelector(names=("GRID T4-2Q",))))
    second = mdev(OTHER, 51, type_id="nvidia-223", type_name="GRID T4-2Q")
    found = decided(mdev(), second, wish=Spec(rules=(rule,)))
    assert reasons(found) == {RULE.name: {UUID: None, OTHER: None}}


def test_without_discovery_only_rules_offer_mdevs() -> None:
    other = mdev(OTHER, 51, type_id="nvidia-223")
    assert reasons(decided(mdev(), other, wish=RULED)) == {RULE.name: {UUID: None}}


def test_a_rule_for_functions_takes_no_mdev_and_a_rule_for_mdevs_no_function() -> None:
    every = PciRule("a.b/pci", (PciSelector(),))
    found = decided(mdev(), function(), wish=Spec(Discovery(enabled=False), rules=(every, RULE)))
    assert reasons(found) == {"a.b/pci": {"0000:65:00.0": None}, RULE.name: {UUID: None}}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"driver": None}, ReasonCode.DRIVER_CHANGED),
        ({"driver": None, "group": None}, ReasonCode.DRIVER_CHANGED),
        ({"group": None}, ReasonCode.NO_GROUP),
        ({"unreadable": "not readable: being removed?"}, ReasonCode.UNREADABLE),
    ],
)
def test_an_mdev_that_cannot_be_used_says_why(change: dict[str, Any], code: ReasonCode) -> None:
    found = reason(decided(mdev()._replace(**change)))
    assert found is not None
    assert found.code is code
    assert found.hint


@pytest.mark.parametrize("missing", ["group", "container"])
def test_an_mdev_without_its_nodes_is_unhealthy(missing: str) -> None:
    here = host(mdev())
    if missing == "group":
        bare = {number: group._replace(node=False) for number, group in here.groups.items()}
        here = replace(here, groups=bare)
    else:
        here = replace(here, nodes=frozenset())
    found = reason(turn.decide_first(snapshot(here, ALL, names=NAMES)))
    assert found is not None
    assert found.code is ReasonCode.NODE_MISSING


def test_an_mdev_needs_no_iommu() -> None:
    assert reason(turn.decide_first(snapshot(replace(host(mdev()), iommu=False), ALL, names=NAMES))) is None


def test_a_held_mdev_stays_as_it_is_and_one_held_under_another_name_waits() -> None:
    assert reason(decided(mdev(), holders=holders(UUID, resource=T4_1Q))) is None
    found = reason(decided(mdev(), holders=holders(UUID, resource="other.com/x")))
    assert found is not None
    assert found.code is ReasonCode.GROUP_HELD


def test_an_mdev_that_is_made_anew_with_another_type_moves_to_that_types_resource() -> None:
    before = decided(mdev())
    now = after(before, host(mdev(type_id="nvidia-223", type_name="GRID T4-2Q")))
    assert reasons(now) == {"nvidia.com/GRID_T4-2Q": {UUID: None}}


def test_an_mdev_whose_new_type_nobody_offers_stays_listed_with_the_reason() -> None:
    before = decided(mdev(), wish=RULED)
    now = after(before, host(mdev(type_id="nvidia-223")))
    found = reason(now)
    assert found is not None
    assert found.code is ReasonCode.MDEV_TYPE_CHANGED
    names(found.message, "nvidia-222", "nvidia-223")
    assert reason(after(now, host(mdev()))) is None


def test_a_held_mdev_of_another_type_is_listed_until_its_release() -> None:
    rules = (RULE, MdevRule("example.com/two", (MdevSelector(types=("nvidia-223",)),)))
    held = holders(UUID, resource=RULE.name)
    before = decided(mdev(), wish=Spec(Discovery(enabled=False), rules=rules), holders=held)
    now = after(before, host(mdev(type_id="nvidia-223")), holders=held)
    assert reasons(now) == {
        RULE.name: {UUID: ReasonCode.MDEV_TYPE_CHANGED},
        "example.com/two": {UUID: ReasonCode.GROUP_HELD},
    }
    free = after(now, now.snapshot.host)
    assert reasons(free) == {"example.com/two": {UUID: None}}


def leaving(group: int = 50) -> Host:
    """The mdev has left its bus, but its group still has it."""
    number = GroupNumber(group)
    return host(groups={number: Group(number, (UUID,), "unknown", node=True)})


@pytest.mark.parametrize("held", [{}, holders(UUID, resource=T4_1Q)])
def test_an_mdev_whose_removal_waits_is_going_away_until_it_has_gone(held: Any) -> None:
    now = after(decided(mdev(), holders=held), leaving(), holders=held)
    assert reasons(now) == {T4_1Q: {UUID: ReasonCode.GOING_AWAY}}
    assert reasons(after(now, host())) == {}


def test_a_holder_keeps_an_mdev_listed_that_was_on_its_way_out_before_the_start() -> None:
    rule = MdevRule(T4_1Q, (MdevSelector(types=("nvidia-222",)),))
    held = holders(UUID, resource=T4_1Q)
    found = turn.decide_first(snapshot(leaving(), Spec(rules=(rule,)), holders=held))
    assert reasons(found) == {T4_1Q: {UUID: ReasonCode.GOING_AWAY}}


def test_an_mdev_that_has_gone_stays_listed_while_a_pod_holds_it() -> None:
    held = holders(UUID, resource=T4_1Q)
    now = after(decided(mdev(), holders=held), host(), holders=held)
    assert reasons(now) == {T4_1Q: {UUID: ReasonCode.GONE}}
    assert reasons(after(now, host())) == {}


@pytest.mark.parametrize("isolation", list(Isolation))
def test_each_mdev_is_a_device_of_its_own(isolation: Isolation) -> None:
    wish = Spec(rules=(replace(RULE, isolation=isolation),))
    assert reasons(decided(mdev(), mdev(OTHER, 51), wish=wish)) == {RULE.name: {UUID: None, OTHER: None}}


def test_a_container_gets_its_mdevs_in_the_order_of_the_request() -> None:
    found = decided(mdev(), mdev(OTHER, 51), wish=RULED)
    given = grants.grant(found.resources[ResourceName(RULE.name)], [OTHER, UUID], found)
    assert given.envs == (("MDEV_PCI_RESOURCE_EXAMPLE_COM_VGPU", f"{OTHER},{UUID}"),)
    assert [node.path for node in given.nodes] == ["/dev/vfio/vfio", "/dev/vfio/51", "/dev/vfio/50"]


@pytest.mark.parametrize(
    ("iommufd", "paths"),
    [
        (Iommufd.NEVER, ["/dev/vfio/vfio", "/dev/vfio/50"]),
        (Iommufd.AUTO, ["/dev/vfio/vfio", "/dev/vfio/50", "/dev/vfio/devices/vfio3", "/dev/iommu"]),
        (Iommufd.ONLY, ["/dev/vfio/vfio", "/dev/vfio/devices/vfio3", "/dev/iommu"]),
    ],
)
def test_the_node_of_its_own_is_given_only_where_iommufd_is_asked_for(
    iommufd: Iommufd, paths: list[str]
) -> None:
    here = host(mdev(vfio_device="vfio3", cdev=True), nodes=NODES | {"/dev/iommu"})
    found = turn.decide_first(snapshot(here, Spec(rules=(replace(RULE, iommufd=iommufd),))))
    given = grants.grant(found.resources[ResourceName(RULE.name)], [UUID], found)
    assert [node.path for node in given.nodes] == paths


def test_an_mdev_that_is_not_there_is_refused() -> None:
    found = decided(mdev(), wish=RULED)
    with pytest.raises(AllocationRefused, match=OTHER):
        grants.grant(found.resources[ResourceName(RULE.name)], [OTHER], found)


def test_mdevs_and_functions_that_share_a_name_are_told_apart_by_their_variables() -> None:
    wish = Spec(rules=(PciRule("a.b/c", (PciSelector(),)),), aliases=((T4_1Q, "a.b/c"),))
    found = decided(function(), mdev(), wish=wish)
    given = grants.grant(found.resources[ResourceName("a.b/c")], [UUID, "0000:65:00.0"], found)
    assert dict(given.envs) == {"PCI_RESOURCE_A_B_C": "0000:65:00.0", "MDEV_PCI_RESOURCE_A_B_C": UUID}


VF = "0000:65:00.4"


def test_a_vf_with_a_vgpu_type_is_a_pci_device_named_after_the_type() -> None:
    found = decided(vgpu(), vgpu("0000:65:00.5", 21, vgpu_type="1148"))
    assert reasons(found) == {
        VGPU: {VF: None},
        "nvidia.com/vgpu-without-name": {"0000:65:00.5": ReasonCode.TYPE_NAME_UNKNOWN},
    }
    given = grants.grant(found.resources[ResourceName(VGPU)], [VF], found)
    assert given.envs == (("PCI_RESOURCE_NVIDIA_COM_NVIDIA_A40-1B", VF),)
    assert [node.path for node in given.nodes] == ["/dev/vfio/vfio", "/dev/vfio/20"]


def test_named_by_ids_or_by_a_rule_a_type_without_a_name_is_given() -> None:
    other = vgpu(vgpu_type="1148")
    by_id = decided(other, wish=Spec(Discovery(naming="id")))
    assert reasons(by_id) == {"nvidia.com/nvidia-1148": {VF: None}}
    rule = PciRule("a.b/vf", (PciSelector(vgpu_types=("1148",)),))
    assert reasons(decided(other, wish=Spec(rules=(rule,)))) == {"a.b/vf": {VF: None}}


@pytest.mark.parametrize(
    "other",
    [
        {"vgpu_type": None},
        {"vgpu": False},
        {"driver": "nouveau"},
        {"sriov_capable": True},
        {"driver": None},
    ],
)
def test_only_a_vf_on_the_vendors_driver_with_a_type_is_a_vgpu(other: dict[str, Any]) -> None:
    assert reasons(decided(vgpu(**other))) == {}


@pytest.mark.parametrize("open_vfio", [False, True])
def test_a_type_that_is_cleared_or_changed_is_told_and_ends_by_itself(open_vfio: bool) -> None:
    before = decided(vgpu(vfio=open_vfio))
    cleared = after(before, host(vgpu(vgpu_type=None, vfio=open_vfio)))
    found = reason(cleared, VF)
    assert found is not None
    assert found.code is ReasonCode.MDEV_TYPE_CHANGED
    assert "it was 1147" in found.message
    assert reason(after(cleared, host(vgpu(vfio=open_vfio))), VF) is None


def test_a_rule_by_type_lets_go_of_a_vf_that_became_another_one() -> None:
    one = PciRule("a.b/one", (PciSelector(vgpu_types=("1147",)),))
    two = PciRule("a.b/two", (PciSelector(vgpu_types=("nvidia-1148",)),))
    wish = Spec(Discovery(enabled=False), rules=(one, two))
    before = decided(vgpu(), wish=wish)
    assert reasons(before) == {"a.b/one": {VF: None}}
    assert reasons(after(before, host(vgpu(vgpu_type="1148")))) == {"a.b/two": {VF: None}}
    third = after(before, host(vgpu(vgpu_type="1149")))
    assert reasons(third) == {"a.b/one": {VF: ReasonCode.MDEV_TYPE_CHANGED}}


def test_a_rule_by_ids_takes_a_vf_whatever_its_type_and_waits_for_one() -> None:
    wish = Spec(Discovery(enabled=False), rules=(PciRule("a.b/vf", (PciSelector(devices=("1eb8",)),)),))
    assert reasons(decided(vgpu(vgpu_type="1149"), wish=wish)) == {"a.b/vf": {VF: None}}
    assert reasons(decided(vgpu(vgpu_type=None), wish=wish)) == {"a.b/vf": {VF: ReasonCode.MDEV_TYPE_CHANGED}}


def test_the_opens_that_the_vendors_driver_counts_say_nothing_of_a_holder() -> None:
    assert reason(decided(vgpu(enable=1, vfio=True)), VF) is None


def test_a_parent_does_not_change_what_its_mdevs_are() -> None:
    before = decided(function(driver="nvidia"), mdev())
    now = after(before, host(mdev()))
    assert now.resources[ResourceName(T4_1Q)] is before.resources[ResourceName(T4_1Q)]
    assert isinstance(now.snapshot.host.device(UUID), Mdev)
    assert now.snapshot.host.device(PciAddress("0000:65:00.0")) is None
