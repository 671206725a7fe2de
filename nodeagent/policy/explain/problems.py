# SPDX-License-Identifier: Apache-2.0
"""Finds problems and notes that no device of the status shows, such as a missing IOMMU or driver. Pure.

The daemon and ``scan`` report the same problems and notes. A device that is listed as Unhealthy is left out,
because the status shows its Reason. Mediated devices need neither an IOMMU nor vfio-pci.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.model.host import Host, PciFunction
from nodeagent.model.problem import Problem, ProblemCode, note, wrong
from nodeagent.model.spec import PciRule, Spec
from nodeagent.policy import groups, naming, selectors
from nodeagent.policy.explain import rules
from nodeagent.policy.offer import discovery, kinds, matches
from nodeagent.policy.offer.turn import Decision

VFIO_PCI = "vfio-pci"
_NOT_WANTED = "if no device of this node is to be assigned, set discovery.enabled: false"
_WRITE_AGAIN = "write it again with the tool that created it, or delete it; container runtimes reject it, too"
_ONE_NAME_EACH = "use a separate resource name for each type, unless VMs may get any of them"
_LOOK = "nodeagent explain ADDRESS shows what to check before one of them is bound to vfio-pci"


def find_problems(decision: Decision) -> tuple[Problem, ...]:
    """Return the problems, then the notes."""
    return (
        *_without_iommu(decision.snapshot.host, decision.snapshot.spec),
        *_without_vfio(decision.snapshot.host, decision.snapshot.spec),
        *_faulty_cdi_files(decision.snapshot.host),
        *rules.unused(decision),
        *_on_host_drivers(decision),
        *_mixed_types(decision),
    )


def _without_iommu(host: Host, spec: Spec) -> Iterator[Problem]:
    missing = host.no_iommu
    missed = [each.address for each in host.functions.values() if expected(each, host, spec)]
    if missed and missing is not None:
        what = f"{naming.shorten(missed)} cannot be assigned to a VM: {missing.message}"
        yield wrong(ProblemCode.NO_IOMMU, "", what, f"{missing.hint}; {_NOT_WANTED}")


def _without_vfio(host: Host, spec: Spec) -> Iterator[Problem]:
    missing = host.no_vfio
    if missing is None or not host.iommu:
        return
    missed = [
        each.address
        for each in host.functions.values()
        if not groups.is_assignable(each)
        and not _is_split(each, host)
        and (_is_wanted(each, spec) or (each.driver is None and _is_discoverable(each, spec)))
    ]
    if missed:
        what = f"{naming.shorten(missed)} cannot be assigned to a VM: {missing.message}"
        yield wrong(ProblemCode.NO_VFIO, "", what, missing.hint)


def _faulty_cdi_files(host: Host) -> Iterator[Problem]:
    for file in host.cdi.values():
        if file.fault:
            what = f"CDI: {file.path} cannot be used: {file.fault}"
            yield wrong(ProblemCode.CDI_FILE, file.path, what, _WRITE_AGAIN)


def _on_host_drivers(decision: Decision) -> Iterator[Problem]:
    host, spec = decision.snapshot.host, decision.snapshot.spec
    by_driver: dict[str | None, list[str]] = {}
    for function in host.functions.values():
        if groups.is_assignable(function) or function.address in decision.matched:
            continue
        if function.driver is None and host.no_vfio is not None:
            continue  # reported by _without_vfio
        if _is_discoverable(function, spec) and not _is_split(function, host):
            by_driver.setdefault(function.driver, []).append(function.address)
    for driver, addresses in by_driver.items():
        count = len(addresses)
        which = "function of a discovered class" if count == 1 else "functions of discovered classes"
        on = "without a driver" if driver is None else f"on the host driver {driver}"
        what = f"{count} {which} {on}, not offered: {naming.shorten(addresses)}"
        yield note(ProblemCode.HOST_DRIVER, what, _LOOK if host.iommu else "", driver or "")


def _mixed_types(decision: Decision) -> Iterator[Problem]:
    """Yield a note for each resource whose vGPUs have several types: a VM gets any of them."""
    host, names = decision.snapshot.host, decision.snapshot.names
    types: dict[str, dict[str, str]] = {}
    for device_id, match in decision.matched.items():
        host_device = host.device(device_id)
        if host_device is None:
            continue
        kind = kinds.find_kind(host_device)
        if (type_id := kind.type_of(host_device)) is not None:
            name = kind.text(host_device, names)
            types.setdefault(match.resource, {})[type_id] = name or type_id
    for resource, found in types.items():
        if len(found) > 1:
            listed = naming.shorten(list(found.values()))
            what = f"{resource} has vGPUs of several types: {listed}; a VM gets any"
            yield note(ProblemCode.MIXED_TYPES, what, _ONE_NAME_EACH, resource)


def expected(function: PciFunction, host: Host, spec: Spec) -> bool:
    """Return True if a rule or discovery would offer the whole function if it were on a VFIO driver."""
    wanted = _is_discoverable(function, spec) or _is_wanted(function, spec)
    return wanted and not _is_split(function, host)


def _is_discoverable(function: PciFunction, spec: Spec) -> bool:
    """Return True if discovery would match the function on a VFIO driver."""
    if not spec.discovery.enabled or function.bridge or matches.is_left_to_virt_handler(function, spec):
        return False
    return discovery.class_refusal(function, spec.discovery) is None


def _is_wanted(function: PciFunction, spec: Spec) -> bool:
    """Return True if a rule would match the function on vfio-pci."""
    if function.bridge:
        return False
    if f"{function.vendor}:{function.device}" in spec.kubevirt_rules:
        return True
    return any(
        selectors.find_mismatch(selector._replace(drivers=()), function) is None
        for rule in spec.rules
        if isinstance(rule, PciRule) and not rule.permitted
        for selector in rule.selectors
        if not selector.vgpu_types and (not selector.drivers or VFIO_PCI in selector.drivers)
    )


def _is_split(function: PciFunction, host: Host) -> bool:
    """Return True if the function has VFs, mdevs or vGPU types, so it is not assigned as a whole."""
    return bool(function.vfs) or groups.is_vgpu_capable(function) or function.address in host.mdev_parents
