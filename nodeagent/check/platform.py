# SPDX-License-Identifier: Apache-2.0
"""Checks of firmware and kernel: IOMMU, interrupt remapping, ACS override; how the command line is changed.

The IOMMUs of AMD and Arm are active wherever the firmware describes them; Intel's depends on how the kernel
was built (CONFIG_INTEL_IOMMU_DEFAULT_ON). The firmware describes an IOMMU by an ACPI table: DMAR (Intel),
IVRS (AMD), IORT (Arm). Parameters are those of the kernel's Documentation/admin-guide/kernel-parameters.rst,
tools those of the boot loaders' manuals. No ACPI table is read but its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from nodeagent.check.findings import REBOOT, Finding, Node, note, ok, unseen, wrong
from nodeagent.kernel.root import Root
from nodeagent.policy import naming

_IOMMUS, _TABLES = "/sys/class/iommu", "/sys/firmware/acpi/tables"
_UNSAFE_INTERRUPTS = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
_MOST = 16 << 20  # bytes of /proc/interrupts and /proc/cpuinfo on the largest nodes
_CPU = re.compile(r"^(?:vendor_id|CPU (implementer))\s*:\s*(\S+)", re.MULTILINE)
_FLAGS = re.compile(r"^flags\s*:(.*)", re.MULTILINE)
_REMAPPING = re.compile(r"\b(?:IR-\S+|ITS-\S+)")  # interrupt chips: x86 "IR-PCI-MSI", Arm "ITS-MSI"
_EMPTY = f"no IOMMU is active: {_IOMMUS} is empty"
_SETUP = f"in the firmware's setup, and {REBOOT}"
_BY_HYPERVISOR = (
    "this is a virtual machine: give it an IOMMU (libvirt: an iommu device), or use a bare-metal node"
)
_GENERIC = f"switch it on (VT-d, AMD-Vi, SMMU) {_SETUP}; on Intel also with intel_iommu=on"


class _Vendor(NamedTuple):
    table: str
    switch: str  # its name in the firmware's setup
    log: str  # a word of its lines in the kernel's log


_INTEL, _AMD = _Vendor("DMAR", "VT-d", "DMAR"), _Vendor("IVRS", "AMD-Vi (IOMMU)", "AMD-Vi")
_VENDORS = {
    "GenuineIntel": _INTEL,
    "CentaurHauls": _INTEL,
    "Shanghai": _INTEL,
    "AuthenticAMD": _AMD,
    "HygonGenuine": _AMD,
    "Arm": _Vendor("IORT", "SMMU (IOMMU)", "smmu"),
}
"""Processor in /proc/cpuinfo → vendor of its IOMMU."""


def check_iommu(node: Node) -> Finding:
    """Is an IOMMU active, and if not, why?"""
    if node.host.iommu:
        return ok(f"active: {naming.few(node.root.names(_IOMMUS)) or 'an entry'} in {_IOMMUS}")
    seen, to_do = _explain_iommu_off(node.root)
    if node.host.mdevs or node.host.mdev_parents:
        return note(f"{seen}; mdevs need none", to_do)
    return wrong(seen, to_do)


def _explain_iommu_off(root: Root) -> tuple[str, str]:
    """Return why no IOMMU is active, and what to do."""
    words, tables = _command_line(root), root.names(_TABLES)
    vendor = _iommu_vendor(root, tables)
    if off := find_iommu_off(words):
        return f"no IOMMU is active: {off} in /proc/cmdline", remove_word(off, root)
    if vendor is None:
        return _EMPTY, _GENERIC
    asked = any(word.startswith("intel_iommu=on") for word in words)
    in_firmware = _BY_HYPERVISOR if _is_vm(root) else f"switch {vendor.switch} on {_SETUP}"
    if not tables:  # a container may not see them
        also = "" if _is_vm(root) or vendor is not _INTEL or asked else "; intel_iommu=on is needed, too"
        return f"{_EMPTY}; ACPI tables cannot be seen", in_firmware + also
    if vendor.table not in tables:
        return f"no IOMMU: the firmware has no {vendor.table} in {_TABLES}", in_firmware
    seen = f"no IOMMU is active, though the firmware has a {vendor.table} in {_TABLES}"
    if vendor is _INTEL and not asked:
        return f"{seen}; no intel_iommu=on in /proc/cmdline", add_word("intel_iommu=on", root)
    return seen, f"see why: dmesg | grep {vendor.log}; a kernel may be built without its driver"


def _iommu_vendor(root: Root, tables: Iterable[str]) -> _Vendor | None:
    """Return the vendor by the ACPI table, or else by the processor.

    A VM may have the processor of one vendor and the IOMMU of another.
    """
    described = (vendor for vendor in _VENDORS.values() if vendor.table in tables)
    return next(described, _VENDORS.get(_processor(root)))


def check_remapping(node: Node) -> Finding:
    """Are interrupts remapped?

    VFIO refuses a device where they are not, because its guest could forge interrupts of the host
    (``vfio_iommu_type1_attach_group`` in drivers/vfio/vfio_iommu_type1.c).
    """
    if not node.host.iommu:
        return unseen("it needs an IOMMU")
    interrupts = node.root.text("/proc/interrupts", _MOST)
    found = _REMAPPING.search(interrupts or "")
    if found is not None:
        return ok(f"on: {found[0]} in /proc/interrupts")
    if interrupts is None or _processor(node.root) not in _VENDORS or _processor(node.root) == "Arm":
        by_log = "see the kernel's log: dmesg | grep -i -e remapping -e AMD-Vi"
        return unseen("/proc/interrupts does not show it", by_log)
    seen, to_do = "off: no remapped interrupt (IR-) in /proc/interrupts", _how_to_remap(node.root)
    if node.root.text(_UNSAFE_INTERRUPTS) in ("Y", "1"):
        return note(f"{seen}; allow_unsafe_interrupts: a guest could forge those of the host", to_do)
    return wrong(f"{seen}: VFIO assigns no device", to_do)


def _how_to_remap(root: Root) -> str:
    word = next((word for word in _command_line(root) if word in ("nointremap", "intremap=off")), "")
    if word:
        return remove_word(word, root)
    if _is_vm(root):
        return "give this virtual machine an IOMMU that remaps interrupts (libvirt: intremap='on')"
    return f"switch interrupt remapping (x2APIC) on {_SETUP}, or see if there is newer firmware"


def check_acs_override(node: Node) -> Finding | None:
    """Does a patched kernel split groups that the hardware does not isolate?"""
    words = _command_line(node.root)
    word = next((word for word in words if word.startswith("pcie_acs_override=")), "")
    if not word:
        return None
    return note(
        f"{word} in /proc/cmdline: groups are smaller than what the hardware isolates",
        "assign all devices below one bridge to one virtual machine, as if the word were not there",
    )


def cpu_flags(root: Root) -> frozenset[str] | None:
    """Return the flags of the first processor; None where /proc/cpuinfo has none (Arm)."""
    found = _FLAGS.search(root.text("/proc/cpuinfo", _MOST) or "")
    return None if found is None else frozenset(found[1].split())


def _is_vm(root: Root) -> bool:
    return "hypervisor" in (cpu_flags(root) or ())


def _processor(root: Root) -> str:
    """Return the vendor of the processor: "GenuineIntel", "Arm"; "" if unknown."""
    found = _CPU.search(root.text("/proc/cpuinfo", _MOST) or "")
    return "" if found is None else "Arm" if found[1] else found[2]


def _command_line(root: Root) -> list[str]:
    return (root.text("/proc/cmdline") or "").split()


def find_iommu_off(words: Iterable[str]) -> str:
    """Return the parameter that switches the IOMMU off, or "". The last one of a name counts."""
    last = dict(word.partition("=")[::2] for word in words)
    values = ((name, last.get(name, "")) for name in ("iommu", "amd_iommu", "intel_iommu"))
    return next((f"{name}={value}" for name, value in values if "off" in value.split(",")), "")


def _edit(file: str, *tool: str) -> tuple[str, str]:
    """Return how a parameter is added to a file and taken out of it."""
    return "; ".join((f"add {{0}} to {file}", *tool)), "; ".join((f"take {{0}} out of {file}", *tool))


def _run(add: str, remove: str) -> tuple[str, str]:
    return f"run: {add}", f"take {{0}} out with: {remove}"


_GRUB, _KERNEL = "GRUB_CMDLINE_LINUX in /etc/default/grub", "/etc/kernel/cmdline"
_RPM_OSTREE = _run("rpm-ostree kargs --append-if-missing={0}", "rpm-ostree kargs --delete={0}")
_GRUBBY = _run("grubby --update-kernel=ALL --args={0}", "grubby --update-kernel=ALL --remove-args={0}")
_LOADERS: tuple[tuple[tuple[str, ...], tuple[str, str]], ...] = (
    (("/run/ostree-booted",), _RPM_OSTREE),
    (("/usr/sbin/proxmox-boot-tool", _KERNEL), _edit(_KERNEL, "proxmox-boot-tool refresh")),
    (("/usr/sbin/grubby",), _GRUBBY),
    (("/usr/sbin/update-grub", "/etc/default/grub"), _edit(_GRUB, "update-grub")),
    (
        ("/usr/sbin/grub2-mkconfig", "/etc/default/grub"),
        _edit(_GRUB, "grub2-mkconfig -o /boot/grub2/grub.cfg"),
    ),
    ((_KERNEL,), _edit(_KERNEL, "kernel-install for the running kernel")),
    ((), _edit("the command line of the kernel in its boot loader")),
)
"""Files that exist where a boot loader is in use, and how it adds and removes a parameter."""


def add_word(word: str, root: Root) -> str:
    """Return how a parameter is added to the command line on this host."""
    return _change_command_line(word, root)[0]


def remove_word(word: str, root: Root) -> str:
    """Return how a parameter is removed from the command line on this host."""
    return _change_command_line(word, root)[1]


def _change_command_line(word: str, root: Root) -> tuple[str, str]:
    add, remove = next(ways for files, ways in _LOADERS if all(map(root.exists, files)))
    return f"{add.format(word)}; {REBOOT}", f"{remove.format(word)}; {REBOOT}"
