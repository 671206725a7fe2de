# SPDX-License-Identifier: Apache-2.0
"""The IOMMU and what keeps it off, interrupt remapping, and how the command line is changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.check import platform
from nodeagent.check.findings import Finding, Verdict
from nodeagent.kernel import prerequisites
from nodeagent.kernel.root import Root
from nodeagent.model.host import MdevType
from tests.check.trees import UNSAFE, WELL, make_node, put, short
from tests.facts import names

OFF = replace(WELL, iommu=False)
CMDLINE, CPUINFO, INTERRUPTS = "/proc/cmdline", "/proc/cpuinfo", "/proc/interrupts"
DMAR = "/sys/firmware/acpi/tables/DMAR"
PLAIN = " 24:  0  PCI-MSI 0-edge  ahci\nNMI:  0  Non-maskable interrupts\n"


def cpu(vendor: str | None, *flags: str) -> str | None:
    """Return /proc/cpuinfo of a processor."""
    if vendor == "Arm":
        return "processor\t: 0\nCPU implementer\t: 0x41\n"
    return None if vendor is None else f"vendor_id\t: {vendor}\nflags\t\t: fpu {' '.join(flags)}\n"


def iommu(root: Path, changed: dict[str, str | None], host: Any = OFF) -> Finding:
    return platform.check_iommu(make_node(root, host, changed))


def remapping(root: Path, changed: dict[str, str | None], host: Any = WELL) -> Finding:
    return platform.check_remapping(make_node(root, host, changed))


def test_an_active_iommu_is_named(tmp_path: Path) -> None:
    verdict, seen, to_do = iommu(tmp_path, {}, WELL)
    assert (verdict, to_do) == (Verdict.OK, "")
    assert "dmar0" in seen


def test_mediated_devices_need_no_iommu(tmp_path: Path) -> None:
    host = replace(OFF, mdev_parents={"mtty": (MdevType("mtty-1"),)})
    assert iommu(tmp_path, {}, host)[0] is Verdict.NOTE


@pytest.mark.parametrize(
    "vendor", ["GenuineIntel", "AuthenticAMD", "HygonGenuine", "Shanghai", "Arm", "IBM/S390", None]
)
@pytest.mark.parametrize("table", [None, "FACP", "DMAR", "IVRS", "IORT"])
def test_an_iommu_that_is_off_is_always_wrong_with_something_to_do(
    tmp_path: Path, vendor: str | None, table: str | None
) -> None:
    for number, words in enumerate(("quiet", "intel_iommu=on", "iommu=off")):
        for flags in ("", "hypervisor"):
            files = {CPUINFO: cpu(vendor, flags), CMDLINE: words, DMAR: None}
            files |= {} if table is None else {f"/sys/firmware/acpi/tables/{table}": ""}
            root = tmp_path / f"{number}{flags}"
            verdict, _, to_do = iommu(root, files)
            assert verdict is Verdict.WRONG
            assert to_do
            assert short(to_do), to_do
            assert ("amd_iommu=on" in to_do) is False, "there is no such parameter"


def test_intels_parameter_is_for_intel_alone(tmp_path: Path) -> None:
    assert "intel_iommu=on" in iommu(tmp_path / "intel", {CMDLINE: ""})[2]
    amd = {CMDLINE: "", CPUINFO: cpu("AuthenticAMD"), DMAR: None, "/sys/firmware/acpi/tables/IVRS": ""}
    assert "intel_iommu" not in iommu(tmp_path / "amd", amd)[2]


def test_the_table_shows_the_vendor_where_the_processor_is_of_another(tmp_path: Path) -> None:
    """As in a virtual machine of QEMU with an AMD processor and an emulated VT-d."""
    _, seen, to_do = iommu(tmp_path, {CPUINFO: cpu("AuthenticAMD"), CMDLINE: ""})
    assert "DMAR" in seen
    assert "intel_iommu=on" in to_do


def test_an_iommu_that_was_requested_and_is_off_is_for_the_log(tmp_path: Path) -> None:
    assert "dmesg" in iommu(tmp_path, {})[2]


@pytest.mark.parametrize(
    ("changed", "host", "verdict"),
    [
        ({}, WELL, Verdict.OK),
        ({INTERRUPTS: "  9:  0  IR-IO-APIC  9-fasteoi  acpi\n"}, WELL, Verdict.OK),
        ({INTERRUPTS: PLAIN}, WELL, Verdict.WRONG),
        ({INTERRUPTS: PLAIN, UNSAFE: "Y\n"}, WELL, Verdict.NOTE),
        ({INTERRUPTS: None}, WELL, Verdict.UNSEEN),
        ({INTERRUPTS: PLAIN, CPUINFO: cpu("Arm")}, WELL, Verdict.UNSEEN),
        ({INTERRUPTS: PLAIN, CPUINFO: "cpu\t\t: POWER9\n"}, WELL, Verdict.UNSEEN),
        ({INTERRUPTS: " 55:  0  ITS-MSI 524288 Edge  nvme0q0\n", CPUINFO: cpu("Arm")}, WELL, Verdict.OK),
        ({INTERRUPTS: PLAIN}, OFF, Verdict.UNSEEN),
    ],
)
def test_interrupts_are_judged_by_the_chips_that_serve_them(
    tmp_path: Path, changed: dict[str, str | None], host: Any, verdict: Verdict
) -> None:
    assert remapping(tmp_path, changed, host)[0] is verdict


@pytest.mark.parametrize("word", ["nointremap", "intremap=off"])
def test_remapping_is_switched_on_where_it_was_switched_off(tmp_path: Path, word: str) -> None:
    names(
        remapping(tmp_path / "a", {INTERRUPTS: PLAIN, CMDLINE: f"intremap=on {word}"})[2], f"take {word} out"
    )
    vm = {INTERRUPTS: PLAIN, CPUINFO: cpu("GenuineIntel", "hypervisor")}
    assert "libvirt" in remapping(tmp_path / "b", vm)[2]
    assert "firmware" in remapping(tmp_path / "c", {INTERRUPTS: PLAIN})[2]


def test_a_kernel_that_is_told_to_ignore_acs_is_named(tmp_path: Path) -> None:
    node = make_node(tmp_path, changed={CMDLINE: "quiet pcie_acs_override=downstream"})
    found = platform.check_acs_override(node)
    assert found is not None
    assert found[0] is Verdict.NOTE
    assert "pcie_acs_override=downstream" in found[1]
    assert platform.check_acs_override(make_node(tmp_path / "other")) is None


@pytest.mark.parametrize(
    ("words", "off"),
    [
        ("intel_iommu=on", ""),
        ("intel_iommu=off", "intel_iommu=off"),
        ("intel_iommu=on intel_iommu=off", "intel_iommu=off"),
        ("intel_iommu=off intel_iommu=on,sm_on", ""),
        ("iommu=pt", ""),
        ("iommu=off intel_iommu=on", "iommu=off"),
        ("amd_iommu=fullflush,off", "amd_iommu=fullflush,off"),
        ("xintel_iommu=off", ""),
    ],
)
def test_the_last_parameter_of_a_name_switches_the_iommu_off(words: str, off: str) -> None:
    assert prerequisites.find_iommu_off(words.split()) == off


@pytest.mark.parametrize(
    ("files", "tool"),
    [
        (["run/ostree-booted", "usr/sbin/grubby"], "rpm-ostree"),
        (["usr/sbin/grubby", "etc/default/grub", "usr/sbin/grub2-mkconfig"], "grubby"),
        (["usr/sbin/update-grub", "etc/default/grub"], "update-grub"),
        (["usr/sbin/grub2-mkconfig", "etc/default/grub"], "grub2-mkconfig"),
        (["etc/kernel/cmdline"], "kernel-install"),
        (["etc/kernel/cmdline", "usr/sbin/proxmox-boot-tool"], "proxmox-boot-tool"),
        (["usr/sbin/update-grub"], "boot loader"),
    ],
)
def test_a_boot_loader_is_known_by_its_files_and_changes_the_command_line(
    tmp_path: Path, files: list[str], tool: str
) -> None:
    for path in files:
        put(tmp_path, path)
    root = Root(tmp_path)
    for to_do in (
        prerequisites.add_word("intel_iommu=on", root),
        prerequisites.remove_word("intel_iommu=off", root),
    ):
        assert "intel_iommu=o" in to_do
        names(to_do, tool, "drain", "reboot")
        assert short(to_do)
