# SPDX-License-Identifier: Apache-2.0
"""What the machine below the devices shows, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.kernel import platform
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.surroundings import Loader, Modules, Platform

GPU, OLD = PciAddress("0000:65:00.0"), PciAddress("0000:05:01.0")
HOST = Host({GPU: PciFunction(GPU), OLD: PciFunction(OLD)}, release="6.12.95")


def seen(root: Path, **files: str) -> Platform:
    """What is seen of a tree with these files; "__" stands for a slash."""
    for name, text in files.items():
        put(root, name.replace("__", "/"), text)
    return platform.read(Root(root), HOST)


def put(root: Path, path: str, text: str = "") -> None:
    at = root / path.removeprefix("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(text)


def test_an_empty_tree_tells_nothing(tmp_path: Path) -> None:
    assert platform.read(Root(tmp_path), HOST) == Platform()


@pytest.mark.parametrize(
    ("text", "cpu", "flags"),
    [
        (
            "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu svm\n",
            "AuthenticAMD",
            {"fpu", "svm"},
        ),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "Arm", None),
        ("vendor_id       : IBM/S390\n", "IBM/S390", None),
        ("cpu\t\t: POWER9\n", None, None),
    ],
)
def test_processors_call_themselves_differently(
    tmp_path: Path, text: str, cpu: str | None, flags: set[str] | None
) -> None:
    found = seen(tmp_path, proc__cpuinfo=text)
    assert (found.cpu, found.cpu_flags) == (cpu, flags)


@pytest.mark.parametrize(
    ("text", "chip"),
    [
        (" 24:  0  IR-PCI-MSIX-0000:00:1f.2  0-edge  ahci\n", "IR-PCI-MSIX-0000:00:1f.2"),
        ("  9:  0  IR-IO-APIC  9-fasteoi  acpi\n", "IR-IO-APIC"),
        (" 55:  0  ITS-MSI 524288 Edge  nvme0q0\n", "ITS-MSI"),
        (" 24:  0  PCI-MSI 0-edge  ahci\nNMI:  0  Non-maskable interrupts\n", ""),
    ],
)
def test_chips_that_remap_interrupts_are_known_by_their_names(tmp_path: Path, text: str, chip: str) -> None:
    assert seen(tmp_path, proc__interrupts=text).remapping == chip


@pytest.mark.parametrize(
    ("files", "loader"),
    [
        (["run/ostree-booted", "usr/sbin/grubby"], Loader.OSTREE),
        (["usr/sbin/grubby", "etc/default/grub", "usr/sbin/grub2-mkconfig"], Loader.GRUBBY),
        (["usr/sbin/update-grub", "etc/default/grub"], Loader.UPDATE_GRUB),
        (["usr/sbin/grub2-mkconfig", "etc/default/grub"], Loader.GRUB_MKCONFIG),
        (["etc/kernel/cmdline"], Loader.KERNEL_INSTALL),
        (["etc/kernel/cmdline", "usr/sbin/proxmox-boot-tool"], Loader.PROXMOX),
        (["usr/sbin/update-grub"], None),
    ],
)
def test_a_boot_loader_is_known_by_its_files(tmp_path: Path, files: list[str], loader: Loader | None) -> None:
    for path in files:
        put(tmp_path, path)
    assert platform.read(Root(tmp_path), HOST).loader is loader


def test_modules_are_those_in_the_kernel_and_those_on_its_disk(tmp_path: Path) -> None:
    put(tmp_path, "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n")
    put(tmp_path, "lib/modules/6.12.95/modules.builtin", "kernel/drivers/vfio/vfio.ko\n")
    dep = "kernel/drivers/vfio/pci/vfio-pci.ko.zst: kernel/drivers/vfio/pci/vfio-pci-core.ko.zst\nx/a.ko:\n"
    put(tmp_path, "lib/modules/6.12.95/modules.dep", dep)
    assert platform.read(Root(tmp_path), HOST).modules == Modules(
        present=frozenset({"vfio_iommu_type1"}),
        on_disk=frozenset({"vfio", "vfio_pci", "vfio_pci_core", "a"}),
        unsafe_interrupts=True,
    )


def test_what_has_a_link_is_pci_express(tmp_path: Path) -> None:
    put(tmp_path, f"sys/bus/pci/devices/{GPU}/max_link_speed", "16.0 GT/s PCIe")
    assert platform.read(Root(tmp_path), HOST).express == frozenset({GPU})


def test_a_node_may_be_known_by_its_device_alone(tmp_path: Path) -> None:
    put(tmp_path, "dev/net/tun")
    put(tmp_path, "sys/class/misc/kvm/dev")
    assert platform.read(Root(tmp_path), HOST).nodes == frozenset({"/dev/kvm", "/dev/net/tun"})


def test_where_devices_are_seen_and_none_of_these_they_are_not_there(tmp_path: Path) -> None:
    put(tmp_path, "sys/class/misc/hw_random/dev")
    assert platform.read(Root(tmp_path), HOST).nodes == frozenset()


def test_limits_names_and_words_are_read_as_they_are(tmp_path: Path) -> None:
    put(tmp_path, "proc/sys/fs/inotify/max_user_instances", "128\n")
    put(tmp_path, "proc/sys/fs/inotify/max_user_watches", "x\n")
    put(tmp_path, "sys/firmware/acpi/tables/DMAR")
    put(tmp_path, "sys/class/iommu/dmar0")
    found = seen(tmp_path, proc__cmdline="quiet intel_iommu=on\n")
    assert (found.inotify_instances, found.inotify_watches) == (128, None)
    assert (found.tables, found.iommus) == (frozenset({"DMAR"}), ("dmar0",))
    assert found.words == ("quiet", "intel_iommu=on")
