# SPDX-License-Identifier: Apache-2.0
"""Viability, going away, in use: the kernel's rule as measured on Linux 6.1, 6.12 and 7.2."""

from __future__ import annotations

import pytest

from nodeagent.model.host import Group, Host, Missing, PciFunction, Sight
from nodeagent.model.ids import GroupNumber
from nodeagent.policy import groups
from nodeagent.policy.groups import OpenState
from tests.facts import names
from tests.policy.samples import function, vgpu

VFIO = function()
HOST = function("0000:65:00.1", driver="e1000e")
NOTHING = function("0000:65:00.2", driver=None)
PORT = function("0000:00:15.0", driver="pcieport", pci_class="060400")
BRIDGE = function("0000:00:16.0", driver=None, pci_class="060400")
STUB = function("0000:65:00.3", driver="pci-stub")
MAKER = function(driver="nvidia", sriov_capable=True)
VGPU = vgpu()
EMPTY = vgpu(vgpu_type=None)
UNFINISHED = vgpu(vgpu=False, vgpu_type=None, vfio=True)
VENDOR = function("0000:65:00.4", driver="nvgrace_gpu_vfio_pci", vfio=True)


@pytest.mark.parametrize(
    ("members", "viable"),
    [
        ((VFIO, HOST), False),
        ((NOTHING, HOST), False),
        ((VFIO, NOTHING), True),
        ((VFIO, VFIO), True),
        ((BRIDGE, VFIO, NOTHING), True),
        ((PORT, VFIO), True),
        ((STUB, VFIO), True),
        ((VENDOR, VFIO), True),
        ((), True),
        ((MAKER, VGPU), True),
        ((MAKER, EMPTY), True),
        ((MAKER, UNFINISHED), False),
        ((MAKER, VFIO), False),
        ((MAKER, VGPU, HOST), False),
    ],
)
def test_a_group_is_viable_as_the_kernel_says(members: tuple[PciFunction, ...], viable: bool) -> None:
    assert (groups.find_blockers(members) == ()) is viable


FREE, KEPT = Group(GroupNumber(1)), Group(GroupNumber(1), direct=True)


@pytest.mark.parametrize(
    ("release", "vtd", "kept"),
    [
        ("6.12.95+deb12-amd64", False, True),
        ("6.6.0", False, True),
        ("7.2", False, True),
        ("6.5.13-1-pve", False, False),
        ("5.14.0-570.el9", False, False),
        ("6.1.0-56-amd64", False, False),
        ("6.1.0-56-amd64", True, True),
        ("what", False, True),
        (None, False, True),
    ],
)
def test_memory_mapped_by_firmware_keeps_a_group_on_intel_and_since_linux_6_6_everywhere(
    release: str | None, vtd: bool, kept: bool
) -> None:
    here = Host(release=release, vtd=vtd)
    assert groups.is_kept_by_firmware(KEPT, here) is kept
    assert not groups.is_kept_by_firmware(FREE, here)
    assert not groups.is_kept_by_firmware(None, here)


SEEN, NOBODY, HIDDEN = Sight("process 7 (qemu)", whole=True), Sight(whole=True), Sight()


@pytest.mark.parametrize(
    ("enable", "idle", "sight", "state"),
    [
        (0, 0, None, OpenState.CLOSED),
        (1, 0, None, OpenState.OPEN),
        (1, None, None, OpenState.OPEN),
        (1, 1, None, OpenState.UNKNOWN),
        (1, 1, SEEN, OpenState.OPEN),
        (1, 1, Sight("process 7 (qemu)"), OpenState.OPEN),
        (1, 1, NOBODY, OpenState.CLOSED),
        (1, 0, NOBODY, OpenState.OPEN),
        (1, 1, HIDDEN, OpenState.UNKNOWN),
        (2, 1, HIDDEN, OpenState.OPEN),
        (1, 0, HIDDEN, OpenState.OPEN),
        (0, -1, NOBODY, OpenState.OPEN),
        (-1, -1, NOBODY, OpenState.CLOSED),
    ],
)
def test_a_count_that_a_former_driver_may_have_left_is_not_somebody_who_has_it_open(
    enable: int, idle: int | None, sight: Sight | None, state: OpenState
) -> None:
    assert groups.find_open_state(function(enable=enable, idle=idle, sight=sight)) is state
    other = function(enable=enable, idle=idle, sight=sight, driver="i915")
    assert groups.find_open_state(other) is OpenState.CLOSED


def test_all_blockers_are_named_in_order() -> None:
    other = function("0000:65:00.5", driver="snd_hda_intel")
    assert groups.find_blockers((HOST, VFIO, other)) == (HOST, other)


def test_a_vfio_directory_without_a_driver_is_no_binding() -> None:
    assert groups.is_vfio_bound(VFIO)
    assert not groups.is_vfio_bound(function(driver=None, vfio=True))
    assert not groups.is_vfio_bound(HOST)


def test_a_vf_on_the_driver_of_nvidia_is_never_a_function_to_pass_through() -> None:
    for found in (VGPU._replace(vfio=True), EMPTY._replace(vfio=True), UNFINISHED):
        assert not groups.is_vfio_bound(found)
        assert not groups.is_open(found._replace(enable=1, idle=0))
    assert [groups.is_unfinished(each) for each in (VGPU, EMPTY, UNFINISHED, MAKER, VFIO)] == [
        *(False, False, True, False, False)
    ]


@pytest.mark.parametrize(
    ("found", "node", "going"),
    [
        (function(driver=None, enable=1), True, True),
        (function(driver=None, enable=1), False, False),
        (function(driver=None, enable=0), True, False),
        (function(driver=None, enable=None), True, False),
        (function(enable=1), True, False),
        (function(driver=None, enable=1, idle=1), True, False),
        (function(driver=None, enable=1, lowest=1), True, True),
        (function(driver=None, enable=0, lowest=0), True, False),
    ],
)
def test_going_away_is_no_driver_still_open_and_still_a_node(
    found: PciFunction, node: bool, going: bool
) -> None:
    assert groups.is_going_away(found, Group(GroupNumber(1), node=node)) is going
    assert not groups.is_going_away(found, None)


def test_what_was_seen_with_a_lower_count_is_going_away_also_on_a_kernel_without_group_nodes() -> None:
    assert groups.is_going_away(function(driver=None, enable=2, lowest=1), None)


def test_opens_count_only_while_a_vfio_driver_has_the_function() -> None:
    assert groups.is_open(function(enable=1, idle=0))
    assert not groups.is_open(function(enable=0, idle=0))
    assert groups.find_open_state(function(enable=None)) is OpenState.UNKNOWN
    assert not groups.is_open(function(driver="e1000e", enable=1, idle=0))


def test_a_group_of_vfio_noiommu_is_named_as_such_with_the_advice_for_this_host() -> None:
    missing = Missing("no IOMMU is active", "switch VT-d on")
    found = groups.find_missing_isolation(Group(GroupNumber(1), name="vfio-noiommu"), missing)
    assert found is not None
    names(found.message, "vfio-noiommu")
    names(found.hint, "enable_unsafe_noiommu_mode", "VT-d")
    assert groups.find_missing_isolation(Group(GroupNumber(1)), missing) is None
    assert groups.find_missing_isolation(None, missing) == missing
