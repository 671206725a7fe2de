# SPDX-License-Identifier: Apache-2.0
"""Checks firmware and kernel: IOMMU, interrupt remapping, ACS override."""

from __future__ import annotations

import re

from nodeagent.check.findings import Finding, Node, note, ok, unseen, wrong
from nodeagent.kernel import prerequisites
from nodeagent.kernel.prerequisites import IN_SETUP, IOMMUS
from nodeagent.kernel.root import Root
from nodeagent.policy import naming

_UNSAFE_INTERRUPTS = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
_MOST = 16 << 20  # bytes of /proc/interrupts on the largest nodes
_REMAPPING = re.compile(r"\b(?:IR-\S+|ITS-\S+)")  # interrupt chips: x86 "IR-PCI-MSI", Arm "ITS-MSI"


def check_iommu(node: Node) -> Finding:
    """Is an IOMMU active, and if not, why?"""
    if node.host.iommu:
        return ok(f"active: {naming.shorten(node.root.names(IOMMUS)) or 'an entry'} in {IOMMUS}")
    seen, to_do = node.host.iommu_missing or prerequisites.explain_iommu_off(node.root)
    if node.host.mdevs or node.host.mdev_parents:
        return note(f"{seen}; mdevs need none", to_do)
    return wrong(seen, to_do)


def check_remapping(node: Node) -> Finding:
    """Are interrupts remapped?

    Without interrupt remapping, VFIO refuses all devices, because a guest could forge interrupts of the host
    (``vfio_iommu_type1_attach_group`` in drivers/vfio/vfio_iommu_type1.c).
    """
    if not node.host.iommu:
        return unseen("it needs an IOMMU")
    interrupts = node.root.text("/proc/interrupts", _MOST)
    found = _REMAPPING.search(interrupts or "")
    if found is not None:
        return ok(f"on: {found[0]} in /proc/interrupts")
    processor = prerequisites.read_processor(node.root)
    if interrupts is None or processor not in prerequisites.VENDORS or processor == "Arm":
        by_log = "dmesg | grep ITS" if processor == "Arm" else "dmesg | grep -i remapping"
        return unseen("/proc/interrupts does not show it", f"see the kernel's log: {by_log}")
    seen, to_do = "off: no remapped interrupt (IR-) in /proc/interrupts", _how_to_remap(node.root)
    if node.root.text(_UNSAFE_INTERRUPTS) in ("Y", "1"):
        return note(f"{seen}; allow_unsafe_interrupts: a guest could forge interrupts of the host", to_do)
    return wrong(f"{seen}: VFIO assigns no device", to_do)


def _how_to_remap(root: Root) -> str:
    word = next(
        (word for word in prerequisites.read_command_line(root) if word in ("nointremap", "intremap=off")), ""
    )
    if word:
        return prerequisites.remove_word(word, root)
    if prerequisites.is_vm(root):
        return "this node is a virtual machine: remap interrupts in its IOMMU (libvirt: intremap='on')"
    return f"switch interrupt remapping (x2APIC) on {IN_SETUP}, or see if there is newer firmware"


def check_acs_override(node: Node) -> Finding | None:
    """Does a patched kernel split groups that the hardware does not isolate?"""
    words = prerequisites.read_command_line(node.root)
    word = next((word for word in words if word.startswith("pcie_acs_override=")), "")
    if not word:
        return None
    return note(
        f"{word} in /proc/cmdline: IOMMU groups are smaller than the hardware can isolate",
        "assign all devices below one bridge to the same VM, as without this option",
    )
