# SPDX-License-Identifier: Apache-2.0
"""Checks VFIO: its modules and device nodes, and the IOMMU groups of devices for VMs.

``modprobe vfio-pci`` also loads ``vfio_iommu_type1`` (a soft dependency of ``vfio``). Kernels from 6.2 on may
have iommufd; Debian's kernels up to 7.2 do not. The kernel puts the devices below a bridge into the group of
the bridge in two cases (``pci_device_group`` in drivers/iommu/iommu.c): the bridge lacks ACS, so the devices
could reach each other past the IOMMU; or it leads to conventional PCI, whose devices the IOMMU cannot
distinguish. In both cases the bridge that causes a large IOMMU group belongs to that group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodeagent.check.findings import Finding, Node, note, ok, unseen, wrong
from nodeagent.kernel import prerequisites
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.host import Group, Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.nodes import CONTAINER_NODE, IOMMUFD_NODE
from nodeagent.model.resource import Iommufd, Isolation, Reason, ReasonCode, waits
from nodeagent.model.spec import MdevRule, PciRule
from nodeagent.policy import classes, groups, naming
from nodeagent.policy.explain.problems import expected
from nodeagent.policy.offer import health, units
from nodeagent.policy.offer.health import Unit

_DRIVER, _MODULES = "/sys/bus/pci/drivers/vfio-pci", "/sys/module"
_BACKENDS = ("vfio_iommu_type1", "vfio_iommu_spapr_tce")
_FEW = 16  # groups or members on one line
_ALONE = health.Use(isolation=Isolation.NONE, iommufd=Iommufd.AUTO)  # pods that use the group do not matter
_ONE_VM = "one virtual machine can use them, if the host uses none; "


def check_vfio_pci(node: Node) -> Finding:
    """Is the driver vfio-pci loaded?"""
    host = node.host
    if host.vfio_loaded:
        return ok(f"loaded: {_DRIVER}")
    seen, to_do = host.vfio_missing or prerequisites.explain_vfio_missing(node.root, host.release)
    if host.mdev_parents or any(map(groups.is_vfio_bound, host.functions.values())):
        return note(f"{seen}; mdevs and other VFIO drivers do not need it", to_do)
    return wrong(seen, to_do)


def check_backend(node: Node) -> Finding:
    """Is the module that maps the memory of a VM loaded?"""
    present = node.root.names(_MODULES)
    if not present:
        return unseen(f"{_MODULES} cannot be seen")
    found = next((name for name in _BACKENDS if name in present), None)
    if found is not None:
        return ok(f"loaded: {_MODULES}/{found}")
    if not node.host.vfio_loaded:
        return unseen("it is loaded with vfio-pci")
    return note(f"not in {_MODULES}", f"load it with: modprobe {_BACKENDS[0]}")


def check_iommufd(node: Node) -> Finding:
    """Does /dev/iommu exist if a resource requires it?"""
    if IOMMUFD_NODE in node.host.nodes:
        return ok(f"there: {IOMMUFD_NODE}")
    for rule in node.spec.rules:
        if isinstance(rule, PciRule | MdevRule) and rule.iommufd is Iommufd.ONLY:
            missing = health.no_iommufd()
            return wrong(f"{rule.name}: {missing.message}", missing.hint)
    return note(f"no {IOMMUFD_NODE}; no resource requires it")


def check_container_node(node: Node) -> Finding:
    """Does /dev/vfio/vfio exist? QEMU needs /dev/vfio/vfio to open groups."""
    if CONTAINER_NODE in node.host.nodes:
        return ok(f"there: {CONTAINER_NODE}")
    if not node.host.vfio_loaded:
        return unseen("it is created with vfio-pci")
    return wrong(f"{CONTAINER_NODE} does not exist, though vfio-pci is loaded", health.HIDDEN_NODE)


def check_groups(node: Node) -> Iterator[tuple[str, Finding]]:
    """Count the IOMMU groups, and check whether VFIO can use the groups of devices for VMs."""
    host = node.host
    yield "groups", _count_groups(host)
    for_vms = [group for _, group in sorted(host.groups.items()) if _is_for_vms(group, node)]
    ready = [f"{group.number} ({group.members[0]})" for group in for_vms if _is_ready_alone(group, node)]
    if ready:
        yield "groups of one", ok(f"ready: {naming.shorten(ready, _FEW)}")
    for group in for_vms:
        if not _is_ready_alone(group, node):
            yield f"group {group.number}", _check_group(group, node)
            if (together := _check_acs(group, node)) is not None:
                yield f"ACS above group {group.number}", together


def _count_groups(host: Host) -> Finding:
    """Return the number of groups and of functions, and name the functions without a group."""
    if not host.groups:
        return unseen("without an IOMMU there are no IOMMU groups")
    without = [each.address for each in host.functions.values() if each.group is None]
    seen = f"{len(host.groups)}; PCI functions in them: {len(host.functions) - len(without)}"
    if not without:
        return ok(seen)
    missing = groups.find_missing_isolation(None, host.no_iommu)
    return note(
        f"{seen}; PCI functions without a group: {naming.shorten(without, _FEW)}",
        missing.hint if missing else "",
    )


def _is_for_vms(group: Group, node: Node) -> bool:
    members = node.host.members(group.number)
    return any(groups.is_assignable(each) or expected(each, node.host, node.spec) for each in members)


def _is_ready_alone(group: Group, node: Node) -> bool:
    unit = units.build_unit(group.number, node.snapshot)
    return len(group.members) == 1 and all(_find_reason(each, unit) is None for each in unit.functions)


def _find_reason(function: PciFunction, unit: Unit) -> Reason | None:
    """Return why the function is Unhealthy; None if it is Healthy or only waits for the end of a pod."""
    reason = health.check_function(function, unit, _ALONE)
    if reason is not None and waits(reason.code, held=function.address in unit.holders):
        return None
    return reason


def _check_group(group: Group, node: Node) -> Finding:
    """Check the IOMMU group by the Reasons for which its devices would be Unhealthy."""
    unit = units.build_unit(group.number, node.snapshot)
    named = [f"{each.address} ({each.driver or 'no driver'})" for each in unit.functions]
    members = naming.shorten(named, _FEW)
    ready = [each for each in unit.functions if groups.is_assignable(each)]
    for each in ready or [each for each in unit.functions if expected(each, node.host, node.spec)]:
        if (reason := _find_reason(each, unit)) is None:
            continue
        seen = f"{each.address}: {reason.message}; its group: {members}"
        if ready or reason.code in (ReasonCode.NO_GROUP, ReasonCode.FIRMWARE_MAPPED):
            return wrong(seen, _explain(each, "what to do"))
        if used := next(filter(classes.describe_uses, groups.find_blockers(unit.functions)), None):
            seen = f"{used.address} is {classes.describe_uses(used)}; its group: {members}"
            return note(seen, "leave it to the host")
        return note(seen, _explain(each, "what to check before it is bound"))
    return ok(f"viable: {members}")


def _explain(function: PciFunction, what: str) -> str:
    return f"nodeagent explain {function.address} says {what}"


def _check_acs(group: Group, node: Node) -> Finding | None:
    """Find the bridge that keeps several cards in one group."""
    members = [each for each in node.host.members(group.number) if not each.bridge]
    bridges = _topmost_bridges(group, node)
    if not bridges or len({each.address.rpartition(".")[0] for each in members}) < 2:
        return None
    below = [each.address for each in members if not set(bridges).isdisjoint(each.ports)]
    why, to_do = _why_together(below, node)
    return note(
        f"{naming.shorten(bridges)} {why}, so these functions share a group: {naming.shorten(below)}", to_do
    )


def _topmost_bridges(group: Group, node: Node) -> list[PciAddress]:
    """Return the bridges of the group that have members below them, without bridges below other bridges."""
    members = node.host.members(group.number)
    above = {name for each in members for name in each.ports}
    found = [each for each in members if each.bridge and each.address in above]
    names = {each.address for each in found}
    return [each.address for each in found if not names.intersection(each.ports)]


def _why_together(below: Sequence[PciAddress], node: Node) -> tuple[str, str]:
    """Return why a bridge keeps these functions in one group, and the fix.

    Only a PCI Express function has a file for its link speed. Reading that file would wake the function
    (``pcie_dev_attrs_are_visible`` in drivers/pci/pci-sysfs.c), so only its existence is checked.
    """
    express = {each for each in node.host.functions if node.root.exists(f"{DEVICES}/{each}/max_link_speed")}
    if not express:
        why = "has no ACS, or leads to conventional PCI"
        return why, f"{_ONE_VM}to separate them, move one below another root port"
    if express.isdisjoint(below):
        return (
            "leads to conventional PCI, which has no ACS",
            f"{_ONE_VM}to separate them, move one to a PCI Express slot",
        )
    to_do = f"{_ONE_VM}to separate them, move one below another root port, or enable ACS in the firmware"
    return "has no ACS", to_do


def check_used_by_host(node: Node) -> Finding | None:
    """Find the functions that the host itself uses."""
    uses = [(each, each.uses.found) for each in node.host.functions.values() if each.usable and each.uses]
    used = [f"{function.address} ({'; '.join(map(str, found))})" for function, found in uses if found]
    return note(naming.shorten(used), "never bind these to vfio-pci") if used else None


def check_uses_seen(node: Node) -> Finding | None:
    """Find the uses by the host that cannot be seen from here."""
    usable = [each for each in node.host.functions.values() if each.usable]
    hidden = sorted({why for each in usable if each.uses is not None for why in each.uses.unseen})
    if hidden:
        return unseen("; ".join(hidden), classes.READ_USES)
    if usable and all(each.uses is None for each in usable):
        return unseen("not looked for", classes.READ_USES)
    return None
