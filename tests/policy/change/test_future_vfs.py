# SPDX-License-Identifier: Apache-2.0
"""What is known of VFs before they exist, and whether all of them are for VFIO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.change import Ledger, Move, Plan, bind_drivers, restore_autoprobe, set_num_vfs
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import PassthroughRule, PciSelector, Spec, SriovRule
from nodeagent.policy.change import bindings, future_vfs, sriov
from tests.facts import names
from tests.policy.samples import function, host

PF = PciAddress("0000:3b:00.1")
VF = PciAddress("0000:3b:02.0")
RULE = SriovRule((PciSelector(addresses=(PF,)),), 9)
NOTHING = Ledger()
BY_RULE = replace(RULE, driver="vfio-pci")


def physical(**other: Any) -> PciFunction:
    values = {
        "driver": "ice",
        "sriov_capable": True,
        "vf_device": "1889",
        "vf_offset": 15,
        "vf_stride": 1,
        "autoprobe": True,
        "vendor": "8086",
        "pci_class": "020000",
        "numa_node": 1,
    }
    return function(PF, 1, **(values | other))


def rules(**keys: tuple[Any, ...]) -> tuple[PassthroughRule, ...]:
    return (PassthroughRule((PciSelector(**keys),)),)


@pytest.mark.parametrize(
    ("passthrough", "all_of_them"),
    [
        ((), False),
        (rules(vendors=("8086",), devices=("1889",)), True),
        (rules(vendors=("8086",), devices=("1592",)), False),
        (rules(classes=("0200",), numa_nodes=(1,)), True),
        (rules(classes=("0300",)), False),
        (rules(numa_nodes=(0,)), False),
        (rules(addresses=("0000:3b:02.?", "0000:3b:03.0")), True),  # the ninth VF is the latter
        (rules(addresses=("0000:3b:02.?",)), False),
        (rules(addresses=("0000:3b:02.?",)) + rules(addresses=("0000:3b:03.0",)), True),
        (rules(devices=("1889",), drivers=("iavf",)), False),
        (rules(devices=("1889",), iommu_groups=(7,)), False),
        (rules(devices=("1889",), subsystems=("8086:0001",)), False),
    ],
)
def test_vfs_are_for_vfio_where_what_is_known_of_each_is_picked(
    passthrough: tuple[PassthroughRule, ...], all_of_them: bool
) -> None:
    assert future_vfs.is_for_vfio(physical(), RULE, passthrough) is all_of_them
    assert future_vfs.is_for_vfio(physical(), BY_RULE, passthrough)
    assert not future_vfs.is_for_vfio(physical(), replace(BY_RULE, num_vfs=0), passthrough)
    assert not future_vfs.is_for_vfio(physical(), replace(RULE, num_vfs=0), passthrough)


@pytest.mark.parametrize(
    ("told", "first", "last"),
    [
        ({}, "0000:3b:02.0", "0000:3b:03.0"),
        ({"vf_offset": 127, "vf_stride": 16}, "0000:3b:10.0", "0000:3c:00.0"),  # eight of them end the bus
        ({"vf_offset": 256, "vf_stride": 2}, "0000:3c:00.1", "0000:3c:02.1"),
    ],
)
def test_the_addresses_are_those_that_the_kernel_will_give(
    told: dict[str, int], first: str, last: str
) -> None:
    def picked(count: int, address: str) -> bool:
        """True if it is the address of the VF of that number, the others being known."""
        ours = [f"0000:3{bus}:{slot:02x}.{part}" for bus in "bc" for slot in range(32) for part in range(8)]
        known = tuple(each for each in ours if each != address)
        wanted = replace(RULE, num_vfs=count)
        return not future_vfs.is_for_vfio(physical(**told), wanted, rules(addresses=known))

    assert picked(1, first)
    assert picked(9, last)
    assert not picked(8, last)


@pytest.mark.parametrize(
    "told", [{"vf_offset": 0}, {"vf_offset": None}, {"vf_stride": 0}, {"vf_stride": None}]
)
def test_addresses_that_the_card_does_not_tell_before_pick_nothing(told: dict[str, int | None]) -> None:
    assert not future_vfs.is_for_vfio(physical(**told), RULE, rules(addresses=("0000:3b:0?.?",)))
    assert future_vfs.is_for_vfio(physical(**told), RULE, rules(devices=("1889",)))


def planned(here: Host, spec: Spec, ledger: Ledger = NOTHING) -> Plan:
    known = Snapshot(allocations=Allocations.of({}, Knowledge.COMPLETE), host=here, ledger=ledger)
    return sriov.plan(replace(known, spec=spec))


@pytest.mark.parametrize(("autoprobe", "unprobed"), [(True, True), (False, True), (None, False)])
def test_the_switch_is_to_be_off_wherever_there_is_one(autoprobe: bool | None, unprobed: bool) -> None:
    (step,) = planned(host(physical(autoprobe=autoprobe)), Spec(sriov=(BY_RULE,))).steps
    assert step.action == set_num_vfs(PF, 9, unprobed=unprobed)


def test_the_switch_is_not_changed_for_the_host_nor_to_remove_vfs_nor_on_nvidias_driver() -> None:
    (step,) = planned(host(physical()), Spec(sriov=(RULE,))).steps
    assert step.action == set_num_vfs(PF, 9)
    here = host(physical(vfs=(VF,)), function(VF, 2, physfn=PF, driver=None))
    (step,) = planned(here, Spec(sriov=(BY_RULE,))).steps
    assert step.action == set_num_vfs(PF, 0, (VF,))
    gpu = replace(host(physical(vendor="10de", driver="nvidia", total_vfs=9)), sriov_manage=True)
    assert [each.action.kind for each in planned(gpu, Spec(sriov=(BY_RULE,))).steps] == ["run-sriov-manage"]


def test_the_switch_goes_back_when_nobody_wants_it_off_and_only_where_it_was_ours() -> None:
    here = host(physical(autoprobe=False, vfs=()))
    ours = Ledger(unprobed=frozenset((PF,)))
    assert [each.action for each in planned(here, Spec(), ours).steps] == [restore_autoprobe(PF)]
    back = planned(here, Spec(sriov=(RULE,)), ours).steps
    assert [each.action for each in back] == [restore_autoprobe(PF), set_num_vfs(PF, 9)]
    assert [each.action for each in planned(here, Spec(sriov=(BY_RULE,)), ours).steps] == [
        set_num_vfs(PF, 9, unprobed=True)
    ]
    assert planned(here, Spec()) == Plan()


def test_a_switch_that_was_refused_is_tried_again_later() -> None:
    known = Snapshot(ledger=Ledger(unprobed=frozenset((PF,))), host=host(physical()))
    plan = sriov.plan(replace(known, failures={restore_autoprobe(PF).attempt: "the kernel said EIO"}))
    assert plan.steps == ()
    names(plan.waiting[0].why, "VFs", "the kernel said EIO")


def test_the_vfs_of_a_rule_with_a_driver_are_bound_to_it_unless_another_rule_picks_them() -> None:
    here = replace(
        host(physical(vfs=(VF,)), function(VF, 2, physfn=PF, driver=None, vendor="8086", device="1889")),
        vfio_loaded=True,
    )
    known = Snapshot(allocations=Allocations.of({}, Knowledge.COMPLETE), host=here)
    wish = replace(BY_RULE, num_vfs=1, driver="mlx5_vfio_pci")
    for passthrough, driver in ((), "mlx5_vfio_pci"), (rules(addresses=(VF,)), "vfio-pci"):
        spec = Spec(sriov=(wish,), passthrough=passthrough)
        (step,) = bindings.plan(replace(known, spec=spec)).steps
        assert step.action == bind_drivers(VF, (Move(VF, None, driver, None),), (), ())
    assert bindings.plan(replace(known, spec=Spec(sriov=(replace(wish, driver=None),)))) == Plan()
