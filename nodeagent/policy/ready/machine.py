# SPDX-License-Identifier: Apache-2.0
"""Readiness of the machine: IOMMU, remapping of interrupts, words that weaken both. Pure.

AMD's and Arm's IOMMUs are on wherever the firmware describes them; Intel's is by a choice of whoever built
the kernel (CONFIG_INTEL_IOMMU_DEFAULT_ON). Firmware describes one by a table of ACPI: DMAR (Intel), IVRS
(AMD), IORT (Arm). VFIO refuses a device where interrupts are not remapped, for its guest could forge those of
the host (``vfio_iommu_type1_attach_group`` in drivers/vfio/vfio_iommu_type1.c).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nodeagent.model.host import Host
from nodeagent.model.readiness import ReadinessLine
from nodeagent.model.surroundings import Platform
from nodeagent.policy import naming
from nodeagent.policy.ready import commandline
from nodeagent.policy.ready.lines import Evidence, Section

_HERE = Section("machine")
_EMPTY = "no IOMMU is active: /sys/class/iommu is empty"
_SETUP = f"in the firmware's setup, and {commandline.REBOOT}"
_BY_HYPERVISOR = (
    "this is a virtual machine: give it an IOMMU (libvirt: an iommu device), or use a node that is none"
)
_GENERIC = f"switch it on (VT-d, AMD-Vi, SMMU) {_SETUP}; on Intel also with intel_iommu=on"
_ON = "intel_iommu"


class _Maker(NamedTuple):
    table: str
    switch: str  # its name in the firmware's setup
    log: str  # a word of its lines in the kernel's log


_INTEL, _AMD = _Maker("DMAR", "VT-d", "DMAR"), _Maker("IVRS", "AMD-Vi (IOMMU)", "AMD-Vi")
_MAKERS = {
    "GenuineIntel": _INTEL,
    "CentaurHauls": _INTEL,
    "Shanghai": _INTEL,
    "AuthenticAMD": _AMD,
    "HygonGenuine": _AMD,
    "Arm": _Maker("IORT", "SMMU (IOMMU)", "smmu"),
}
"""What /proc/cpuinfo calls the processor → whose IOMMU it has."""
_X86 = frozenset(_MAKERS) - {"Arm"}


def lines(evidence: Evidence) -> Iterator[ReadinessLine]:
    """IOMMU, interrupts, and what the command line weakens."""
    host, platform = evidence.host, evidence.around.platform
    yield _iommu(host, platform)
    yield _remapping(host, platform)
    if not isinstance(platform, str) and (word := commandline.override(platform.words or ())):
        yield _HERE.note(
            "ACS override",
            f"{word} in /proc/cmdline: groups look smaller than what the hardware keeps apart",
            "give all that is below one bridge to one virtual machine, as if the word were not there",
        )


def _iommu(host: Host, platform: Platform | str) -> ReadinessLine:
    if host.iommu:
        named = "" if isinstance(platform, str) else naming.few(platform.iommus)
        return _HERE.ok("IOMMU", f"active: {named or 'an entry'} in /sys/class/iommu")
    seen, to_do = (_EMPTY, _GENERIC) if isinstance(platform, str) else _why_off(platform)
    if host.mdevs or host.mdev_parents:
        return _HERE.note("IOMMU", f"{seen}; mdevs do without", to_do)
    return _HERE.wrong("IOMMU", seen, to_do)


def _why_off(platform: Platform) -> tuple[str, str]:
    words, loader, maker = platform.words or (), platform.loader, _maker(platform)
    if off := commandline.iommu_off(words):
        return f"no IOMMU is active: {off} in /proc/cmdline", commandline.take(off, loader)
    if maker is None:
        return _EMPTY, _GENERIC
    if platform.tables is None:
        return f"{_EMPTY}; ACPI's tables cannot be seen", _unknown(maker, platform)
    if maker.table not in platform.tables:
        seen = f"no IOMMU: the firmware has no {maker.table} in /sys/firmware/acpi/tables"
        return seen, _BY_HYPERVISOR if _virtual(platform) else f"switch {maker.switch} on {_SETUP}"
    seen = f"no IOMMU is active, though the firmware has a {maker.table} in /sys/firmware/acpi/tables"
    if maker is _INTEL and not _asked_for(platform):
        return f"{seen}; no intel_iommu=on in /proc/cmdline", commandline.add("intel_iommu=on", loader)
    return seen, f"see why: dmesg | grep {maker.log}; a kernel may be built without its driver"


def _maker(platform: Platform) -> _Maker | None:
    """By the table that is there: a virtual machine may have one maker's processor, and another's IOMMU."""
    described = (maker for maker in _MAKERS.values() if maker.table in (platform.tables or ()))
    return next(described, _MAKERS.get(platform.cpu or ""))


def _unknown(maker: _Maker, platform: Platform) -> str:
    if _virtual(platform):
        return _BY_HYPERVISOR
    too = "" if maker is not _INTEL or _asked_for(platform) else "; intel_iommu=on is needed, too"
    return f"switch {maker.switch} on {_SETUP}{too}"


def _virtual(platform: Platform) -> bool:
    return "hypervisor" in (platform.cpu_flags or ())


def _asked_for(platform: Platform) -> bool:
    return any(word.startswith(f"{_ON}=on") for word in platform.words or ())


def _remapping(host: Host, platform: Platform | str) -> ReadinessLine:
    check = "interrupt remapping"
    if isinstance(platform, str):
        return _HERE.unseen(check, platform)
    if not host.iommu:
        return _HERE.unseen(check, "it comes with the IOMMU")
    if platform.remapping:
        return _HERE.ok(check, f"on: {platform.remapping} in /proc/interrupts")
    if platform.remapping is None or platform.cpu not in _X86:
        return _HERE.unseen(check, "/proc/interrupts does not tell", _BY_LOG)
    seen = "off: no remapped interrupt (IR-) in /proc/interrupts"
    to_do = _switch_remapping_on(platform)
    if platform.modules.unsafe_interrupts:
        return _HERE.note(check, f"{seen}; allow_unsafe_interrupts: a guest could forge the host's", to_do)
    return _HERE.wrong(check, f"{seen}: VFIO gives no device away", to_do)


_BY_LOG = "see the kernel's log: dmesg | grep -i -e remapping -e AMD-Vi"


def _switch_remapping_on(platform: Platform) -> str:
    if word := commandline.remapping_off(platform.words or ()):
        return commandline.take(word, platform.loader)
    if _virtual(platform):
        return "give this virtual machine an IOMMU that remaps interrupts (libvirt: intremap='on')"
    return f"switch interrupt remapping (x2APIC) on {_SETUP}, or see if there is newer firmware"
