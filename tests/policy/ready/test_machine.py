# SPDX-License-Identifier: Apache-2.0
"""The machine: an IOMMU, what keeps it off, and interrupts that nobody forges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.host import MdevType
from nodeagent.model.readiness import ReadinessLine, Verdict
from nodeagent.model.surroundings import Loader, Modules
from nodeagent.policy.ready import machine
from tests.facts import names
from tests.policy.ready.asking import WELL, by_check, facts, short

OFF = replace(WELL, iommu=False)
UNSAFE = Modules(unsafe_interrupts=True)


def iommu(host: Any = OFF, **other: Any) -> ReadinessLine:
    return by_check(machine.lines(facts(host, **other)))["IOMMU"]


def remapping(**other: Any) -> ReadinessLine:
    return by_check(machine.lines(facts(**other)))["interrupt remapping"]


def test_one_that_is_active_is_named() -> None:
    line = iommu(WELL)
    assert (line.verdict, line.to_do) == (Verdict.OK, "")
    assert "dmar0" in line.seen


def test_mediated_devices_do_without() -> None:
    host = replace(OFF, mdev_parents={"mtty": (MdevType("mtty-1"),)})
    assert iommu(host).verdict is Verdict.NOTE


@pytest.mark.parametrize(
    "cpu", ["GenuineIntel", "AuthenticAMD", "HygonGenuine", "Shanghai", "Arm", "x", None]
)
@pytest.mark.parametrize("tables", [None, {"FACP"}, {"DMAR"}, {"IVRS"}, {"IORT"}])
@pytest.mark.parametrize("words", [("quiet",), ("intel_iommu=on",), ("iommu=off",)])
@pytest.mark.parametrize("flags", [set(), {"hypervisor"}])
def test_an_iommu_that_is_off_is_always_wrong_with_something_to_do(
    cpu: str | None, tables: set[str] | None, words: tuple[str, ...], flags: set[str]
) -> None:
    known = None if tables is None else frozenset(tables)
    line = iommu(cpu=cpu, tables=known, words=words, cpu_flags=frozenset(flags), loader=Loader.GRUB_MKCONFIG)
    assert line.verdict is Verdict.WRONG
    assert line.to_do
    assert short(line.to_do), line.to_do
    assert ("amd_iommu=on" in line.to_do) is False, "there is no such word"


def test_intels_word_is_for_intel_alone() -> None:
    assert "intel_iommu=on" in iommu(words=()).to_do
    assert "intel_iommu" not in iommu(cpu="AuthenticAMD", tables=frozenset({"IVRS"}), words=()).to_do


def test_the_table_tells_whose_iommu_it_is_where_the_processor_is_anothers() -> None:
    """As in a virtual machine of QEMU with an AMD processor and an emulated VT-d."""
    line = iommu(cpu="AuthenticAMD", words=())
    assert "DMAR" in line.seen
    assert "intel_iommu=on" in line.to_do


def test_what_was_asked_for_and_is_off_all_the_same_is_for_the_log() -> None:
    assert "dmesg" in iommu().to_do


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ({}, Verdict.OK),
        ({"remapping": ""}, Verdict.WRONG),
        ({"remapping": "", "modules": UNSAFE}, Verdict.NOTE),
        ({"remapping": None}, Verdict.UNSEEN),
        ({"remapping": "", "cpu": "Arm"}, Verdict.UNSEEN),
        ({"remapping": "ITS-MSI", "cpu": "Arm"}, Verdict.OK),
        ({"host": OFF, "remapping": ""}, Verdict.UNSEEN),
        ({"platform": "not in the saved host"}, Verdict.UNSEEN),
    ],
)
def test_interrupts_are_judged_by_the_chips_that_serve_them(other: dict[str, Any], verdict: Verdict) -> None:
    assert remapping(**other).verdict is verdict


def test_remapping_is_switched_on_where_it_was_switched_off() -> None:
    names(remapping(remapping="", words=("intremap=off",)).to_do, "intremap=off")
    assert "libvirt" in remapping(remapping="", cpu_flags=frozenset({"hypervisor"})).to_do
    assert "firmware" in remapping(remapping="").to_do


def test_a_kernel_that_is_told_to_forget_acs_is_named() -> None:
    lines = by_check(machine.lines(facts(words=("pcie_acs_override=downstream",))))
    assert lines["ACS override"].verdict is Verdict.NOTE
    assert "pcie_acs_override=downstream" in lines["ACS override"].seen
    assert "ACS override" not in by_check(machine.lines(facts()))
