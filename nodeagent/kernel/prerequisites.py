# SPDX-License-Identifier: Apache-2.0
"""Explains why a host has no active IOMMU or no vfio-pci driver, with the fix for this host.

The scanner stores the result in the Host, so that all commands show the same text; ``nodeagent check`` also
uses parts of this module. The IOMMUs of AMD and Arm are active whenever the firmware describes them; for
Intel this depends on the kernel build (CONFIG_INTEL_IOMMU_DEFAULT_ON). The firmware describes an IOMMU in an
ACPI table: DMAR (Intel), IVRS (AMD), IORT (Arm). Kernel parameters are from
Documentation/admin-guide/kernel-parameters.rst, tools from the boot loaders' manuals. Only the names of ACPI
tables are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from nodeagent.kernel.root import Root
from nodeagent.model.host import NO_IOMMU, NO_VFIO, Missing

IOMMUS = "/sys/class/iommu"
REBOOT = "drain the node and reboot"
IN_SETUP = f"in the firmware's setup, and {REBOOT}"
_TABLES = "/sys/firmware/acpi/tables"
_MOST = 16 << 20  # bytes of /proc/cpuinfo on the largest nodes, and of modules.dep
_CPU = re.compile(r"^(?:vendor_id|CPU (implementer))\s*:\s*(\S+)", re.MULTILINE)
_FLAGS = re.compile(r"^flags\s*:(.*)", re.MULTILINE)
_MODULE = re.compile(r"([^/\s:]+)\.ko(?:\.\w+)?(?=[:\s]|$)")
_BY_HYPERVISOR = (
    "this node is a virtual machine: add an IOMMU to it (libvirt: an iommu device), or use a bare-metal node"
)
_INSTALL = (
    "install all modules of this kernel (Ubuntu: linux-modules-extra, EL: kernel-modules), "
    "or a kernel that has them"
)


class _Vendor(NamedTuple):
    table: str
    switch: str  # its name in the setup of the firmware
    log: str  # a word in its lines of the kernel log


_INTEL, _AMD = _Vendor("DMAR", "VT-d", "DMAR"), _Vendor("IVRS", "AMD-Vi (IOMMU)", "AMD-Vi")
VENDORS = {
    "GenuineIntel": _INTEL,
    "CentaurHauls": _INTEL,
    "Shanghai": _INTEL,
    "AuthenticAMD": _AMD,
    "HygonGenuine": _AMD,
    "Arm": _Vendor("IORT", "SMMU (IOMMU)", "smmu"),
}
"""Processor in /proc/cpuinfo → vendor of its IOMMU."""


def explain_iommu_off(root: Root) -> Missing:
    """Return why no IOMMU is active, and the fix."""
    words, tables = read_command_line(root), root.names(_TABLES)
    vendor = _iommu_vendor(root, tables)
    if off := find_iommu_off(words):
        return Missing(f"no IOMMU is active: {off} in /proc/cmdline", remove_word(off, root))
    if vendor is None:
        return NO_IOMMU
    asked = any(word.startswith("intel_iommu=on") for word in words)
    in_firmware = _BY_HYPERVISOR if is_vm(root) else f"enable {vendor.switch} {IN_SETUP}"
    if not tables:  # a container may not see ACPI tables
        also = "" if is_vm(root) or vendor is not _INTEL or asked else "; intel_iommu=on is also needed"
        return Missing(f"{NO_IOMMU.message}; this process cannot see the ACPI tables", in_firmware + also)
    if vendor.table not in tables:
        return Missing(f"no IOMMU: the firmware has no {vendor.table} in {_TABLES}", in_firmware)
    seen = f"no IOMMU is active, although the firmware has a {vendor.table} in {_TABLES}"
    if vendor is _INTEL and not asked:
        return Missing(f"{seen}; no intel_iommu=on in /proc/cmdline", add_word("intel_iommu=on", root))
    return Missing(seen, f"see dmesg | grep {vendor.log}; the kernel may be built without its driver")


def _iommu_vendor(root: Root, tables: Iterable[str]) -> _Vendor | None:
    """Return the vendor according to the ACPI table, or else the processor.

    A VM may have the processor of one vendor and the IOMMU of another.
    """
    described = (vendor for vendor in VENDORS.values() if vendor.table in tables)
    return next(described, VENDORS.get(read_processor(root)))


def explain_vfio_missing(root: Root, release: str | None) -> Missing:
    """Return why the vfio-pci driver is missing, and the fix."""
    available = _find_modules(root, release)
    if available and "vfio_pci" not in available:
        return Missing(f"no vfio-pci in /lib/modules/{release}, and none is loaded", _INSTALL)
    return NO_VFIO


def _find_modules(root: Root, release: str | None) -> frozenset[str]:
    """Return the modules that modprobe can load or that are built in, named as in /sys/module."""
    paths = (f"/lib/modules/{release}/{name}" for name in ("modules.dep", "modules.builtin"))
    texts = (root.text(path, _MOST) or "" for path in paths)
    return frozenset(name.replace("-", "_") for text in texts for name in _MODULE.findall(text))


def cpu_flags(root: Root) -> frozenset[str] | None:
    """Return the flags of the first processor; None if /proc/cpuinfo has none (Arm)."""
    found = _FLAGS.search(root.text("/proc/cpuinfo", _MOST) or "")
    return None if found is None else frozenset(found[1].split())


def is_vm(root: Root) -> bool:
    """Return True if this host is a virtual machine."""
    return "hypervisor" in (cpu_flags(root) or ())


def read_processor(root: Root) -> str:
    """Return the vendor of the processor: "GenuineIntel", "Arm"; "" if unknown."""
    found = _CPU.search(root.text("/proc/cpuinfo", _MOST) or "")
    return "" if found is None else "Arm" if found[1] else found[2]


def read_command_line(root: Root) -> list[str]:
    """Return the words of the kernel's command line."""
    return (root.text("/proc/cmdline") or "").split()


def find_iommu_off(words: Iterable[str]) -> str:
    """Return the parameter that disables the IOMMU, or "".

    The last parameter with the same name is effective.
    """
    last = dict(word.partition("=")[::2] for word in words)
    values = ((name, last.get(name, "")) for name in ("iommu", "amd_iommu", "intel_iommu"))
    return next((f"{name}={value}" for name, value in values if "off" in value.split(",")), "")


def _edit(file: str, *tool: str) -> tuple[str, str]:
    """Return instructions for adding a parameter to a file and for removing it."""
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
"""Files that show which boot loader is in use, with instructions for adding and removing a parameter."""


def add_word(word: str, root: Root) -> str:
    """Return the instruction for adding a parameter to the kernel command line of this host."""
    return _change_command_line(word, root)[0]


def remove_word(word: str, root: Root) -> str:
    """Return the instruction for removing a parameter from the kernel command line of this host."""
    return _change_command_line(word, root)[1]


def _change_command_line(word: str, root: Root) -> tuple[str, str]:
    add, remove = next(ways for files, ways in _LOADERS if all(map(root.exists, files)))
    return f"{add.format(word)}; {REBOOT}", f"{remove.format(word)}; {REBOOT}"
