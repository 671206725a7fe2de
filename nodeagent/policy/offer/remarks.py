# SPDX-License-Identifier: Apache-2.0
"""What a node would keep silent about: why devices that somebody wants, or expects, are not offered. Pure.

The daemon and ``scan`` ask here, so they cannot disagree. Of a device that is listed as Unhealthy nothing is
said: its Reason does. Mediated devices need neither an IOMMU nor vfio-pci.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.model.desired import Desired, PciRule
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.problem import Problem, ProblemCode, note
from nodeagent.policy import groups, naming, selectors
from nodeagent.policy.offer import idle, matches
from nodeagent.policy.offer.turn import Decision

VFIO_PCI = "vfio-pci"
_BRIDGES, _NVIDIA = "06", "10de"
_SWITCH_ON = (
    "switch it on in the firmware (VT-d, AMD-Vi), on Intel also with intel_iommu=on, and reboot once the "
    "node is drained; where no device is to be given, set discovery.enabled: false"
)
LOAD_VFIO_PCI = (
    "load it on the host: modprobe vfio-pci; a file in its /etc/modules-load.d has it loaded at each boot"
)
_ANEW = "have the tool that wrote it write it anew, or remove it; container runtimes refuse it as well"
_LOOK = "nodeagent explain ADDRESS says what to look at before one of them is bound to vfio-pci"


def remarks(decision: Decision) -> tuple[Problem, ...]:
    """All of a Decision: first what needs a person."""
    return (
        *_without_iommu(decision),
        *_without_vfio(decision),
        *_cdi_files(decision),
        *idle.rules(decision),
        *idle.cdi_rules(decision),
        *idle.aliases(decision),
        *_on_host_drivers(decision),
    )


def _without_iommu(decision: Decision) -> Iterator[Problem]:
    host, desired = decision.snapshot.host, decision.snapshot.desired
    if host.iommu:
        return
    missed = [each.address for each in host.functions.values() if expected(each, host, desired)]
    if missed:
        what = f"this host has no active IOMMU: {naming.few(missed)} cannot be given to a VM"
        yield Problem(ProblemCode.NO_IOMMU, "", what, _SWITCH_ON, True)


def _without_vfio(decision: Decision) -> Iterator[Problem]:
    host, desired = decision.snapshot.host, decision.snapshot.desired
    if host.vfio_loaded or not host.iommu:
        return
    missed = [
        each.address
        for each in host.functions.values()
        if not groups.ready(each)
        and not _splits(each, host)
        and (_wanted(each, desired) or (each.driver is None and _discoverable(each, desired)))
    ]
    if missed:
        what = f"the driver vfio-pci is not loaded: {naming.few(missed)} cannot be given to a VM"
        yield Problem(ProblemCode.NO_VFIO, "", what, LOAD_VFIO_PCI, True)


def _cdi_files(decision: Decision) -> Iterator[Problem]:
    for file in decision.snapshot.host.cdi.values():
        if file.fault:
            what = f"CDI: {file.path} cannot be used: {file.fault}"
            yield Problem(ProblemCode.CDI_FILE, file.path, what, _ANEW, True)


def _on_host_drivers(decision: Decision) -> Iterator[Problem]:
    host, desired = decision.snapshot.host, decision.snapshot.desired
    kept: dict[str, list[str]] = {}
    for function in host.functions.values():
        if function.driver is None or groups.ready(function) or function.address in decision.matched:
            continue
        if _discoverable(function, desired) and not _splits(function, host):
            kept.setdefault(function.driver, []).append(function.address)
    for driver, addresses in kept.items():
        count = len(addresses)
        which = "function of a discovered class is" if count == 1 else "functions of discovered classes are"
        what = f"{count} {which} on the host driver {driver}, and not offered: {naming.few(addresses)}"
        yield note(ProblemCode.HOST_DRIVER, what, _LOOK, driver)


def _discoverable(function: PciFunction, desired: Desired) -> bool:
    """True if discovery would take it, were it ready; other vendors' bridges are no NVSwitches."""
    if not desired.discovery.enabled or function.bridge or matches.given_away(function, desired):
        return False
    if (function.pci_class or "").startswith(_BRIDGES) and function.vendor != _NVIDIA:
        return False
    return selectors.in_classes(desired.discovery.classes, function)


def _wanted(function: PciFunction, desired: Desired) -> bool:
    """True if somebody asks for it as a whole, whatever driver it has now."""
    if function.bridge:
        return False
    if f"{function.vendor}:{function.device}" in desired.permits:
        return True
    return any(
        selectors.mismatch(selector._replace(drivers=()), function) is None
        for rule in desired.rules
        if isinstance(rule, PciRule) and not rule.permitted
        for selector in rule.selectors
        if not selector.vgpu_types and (not selector.drivers or VFIO_PCI in selector.drivers)
    )


def expected(function: PciFunction, host: Host, desired: Desired) -> bool:
    """True if somebody wants it as a whole, or discovery would take it, whatever driver it has now."""
    return not _splits(function, host) and (_discoverable(function, desired) or _wanted(function, desired))


def _splits(function: PciFunction, host: Host) -> bool:
    """True if its driver makes mdevs or vGPUs of it, or has VFs: it is not meant to be given as a whole."""
    return bool(function.vfs) or groups.takes_vgpu(function) or function.address in host.mdev_parents
