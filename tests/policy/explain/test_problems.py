# SPDX-License-Identifier: Apache-2.0
"""What would pass in silence: no IOMMU, no vfio-pci, functions on host drivers; and where nothing is said."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.model.host import HostDevice, MdevType
from nodeagent.model.problem import Problem, ProblemCode
from nodeagent.model.spec import Discovery, PciRule, PciSelector, Spec
from nodeagent.policy.explain import problems
from nodeagent.policy.offer import turn
from tests.facts import names
from tests.policy.samples import function, host, mdev, snapshot, vgpu

GPU = function("0000:65:00.0", driver="nouveau")
NET = function("0000:02:00.0", 2, driver="ixgbe", vendor="8086", device="10fb", pci_class="020000")
BRIDGE = function("0000:00:1f.0", 3, driver="lpc_ich", vendor="8086", device="a1c1", pci_class="068000")
OFF = Discovery(enabled=False)
READY = {"vfio_loaded": True}


def made(*here: HostDevice, spec: Spec = Spec(), **facts: Any) -> list[Problem]:  # noqa: B008
    return list(problems.find_problems(turn.decide_first(snapshot(host(*here, **{**READY, **facts}), spec))))


def codes(*here: HostDevice, spec: Spec = Spec(), **facts: Any) -> list[str]:  # noqa: B008
    return [remark.code for remark in made(*here, spec=spec, **facts)]


def wants(selector: PciSelector) -> Spec:
    return Spec(OFF, rules=(PciRule("a.b/c", (selector,)),))


def test_a_node_on_which_all_is_well_has_no_remarks() -> None:
    assert made(function(), NET, BRIDGE) == []


def test_without_an_iommu_what_is_wanted_or_discoverable_is_named() -> None:
    (first, *_) = made(GPU, NET, iommu=False)
    assert (first.code, first.action_required) == (ProblemCode.NO_IOMMU, True)
    assert GPU.address in first.message
    assert NET.address not in first.message
    (wanted,) = made(GPU, NET, spec=wants(PciSelector(vendors=("8086",))), iommu=False)
    assert NET.address in wanted.message


@pytest.mark.parametrize("here", [(NET,), (BRIDGE,), (mdev(),), ()])
def test_without_an_iommu_nothing_is_said_where_nobody_misses_it(here: tuple[HostDevice, ...]) -> None:
    assert codes(*here, iommu=False) == []


@pytest.mark.parametrize(
    ("selector", "missed"),
    [
        (PciSelector(vendors=("10de",)), True),
        (PciSelector(vendors=("10de",), drivers=("vfio-pci",)), True),
        (PciSelector(vendors=("10de",), drivers=("nvgrace_gpu_vfio_pci",)), False),
        (PciSelector(vendors=("10de",), vgpu_types=("nvidia-222",)), False),
        (PciSelector(vendors=("1002",)), False),
    ],
)
def test_vfio_pci_is_missed_where_a_rule_wants_a_whole_function(selector: PciSelector, missed: bool) -> None:
    found = codes(GPU, spec=wants(selector), vfio_loaded=False)
    assert (ProblemCode.NO_VFIO in found) is missed


def test_vfio_pci_is_missed_where_discovery_would_take_what_nobody_has() -> None:
    assert codes(function(driver=None), vfio_loaded=False) == [ProblemCode.NO_VFIO]
    assert codes(GPU, vfio_loaded=False) == [ProblemCode.HOST_DRIVER]


def test_vfio_pci_is_not_missed_where_another_vfio_driver_has_the_function() -> None:
    other = function(driver="nvgrace_gpu_vfio_pci", vfio=True)
    assert codes(other, spec=wants(PciSelector(vendors=("10de",))), vfio_loaded=False) == []


def test_functions_on_a_host_driver_are_counted_by_driver() -> None:
    gpus = [function(f"0000:6{number}:00.0", number, driver="nouveau") for number in range(5, 9)]
    other = function("0000:70:00.0", 20, driver="amdgpu", vendor="1002")
    first, second = made(*gpus, other, NET)
    assert (first.code, first.subject, first.action_required) == (ProblemCode.HOST_DRIVER, "nouveau", False)
    names(first.message, 4, "nouveau", "0000:65:00.0", "0000:66:00.0", "0000:67:00.0", 1)
    assert gpus[3].address not in first.message
    assert (second.code, second.subject) == (ProblemCode.HOST_DRIVER, "amdgpu")
    names(second.message, 1, "amdgpu", other.address)


@pytest.mark.parametrize("here", [vgpu(), BRIDGE, function(driver="nvidia", vfs=("0000:65:00.4",))])
def test_a_function_that_is_split_or_a_bridge_is_no_function_on_a_host_driver(
    here: HostDevice,
) -> None:
    assert codes(here) == []


def test_a_function_without_a_driver_is_a_note_where_vfio_pci_could_have_it() -> None:
    (note,) = made(function(driver=None))
    assert (note.code, note.subject, note.action_required) == (ProblemCode.HOST_DRIVER, "", False)
    names(note.message, "0000:65:00.0")


def test_a_card_that_offers_mdevs_is_no_function_on_a_host_driver() -> None:
    assert codes(GPU, mdev_parents={GPU.address: (MdevType("nvidia-222"),)}) == []


def test_what_a_rule_takes_is_told_as_a_device_and_not_here() -> None:
    assert codes(GPU, spec=wants(PciSelector(vendors=("10de",)))) == []
