# SPDX-License-Identifier: Apache-2.0
"""Checks of VFIO: its modules and device nodes, and the IOMMU groups of devices for VMs.

``modprobe vfio-pci`` loads ``vfio_iommu_type1``, too (a soft dependency of ``vfio``). Kernels from 6.2 on may
have iommufd; those of Debian up to 7.2 do not. The kernel puts the devices below a bridge into the bridge's
group where the bridge lacks ACS, because they could reach each other past the IOMMU, and where it leads to
conventional PCI, whose devices the IOMMU cannot distinguish (``pci_device_group`` in drivers/iommu/iommu.c).
So the bridge that causes a large group is a member of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodeagent.check.findings import Finding, Node, note, ok, unseen, wrong
from nodeagent.kernel import prerequisites
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.host import Group, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.nodes import CONTAINER_NODE, IOMMUFD_NODE
from nodeagent.model.resource import Iommufd
from nodeagent.model.spec import MdevRule, PciRule
from nodeagent.policy import classes, groups, naming
from nodeagent.policy.explain.problems import expected

_DRIVER, _MODULES = "/sys/bus/pci/drivers/vfio-pci", "/sys/module"
_BACKENDS = ("vfio_iommu_type1", "vfio_iommu_spapr_tce")
_FEW = 16  # groups or members on one line
_ONE_VM = "one virtual machine gets them all, none while the host uses one; "
_ON_THE_NODE = "run it on the node itself, as root, in its PID and network namespaces"


def check_vfio_pci(node: Node) -> Finding:
    """Is the driver vfio-pci there?"""
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
    """Is iommufd there where a resource requires it?"""
    if IOMMUFD_NODE in node.host.nodes:
        return ok(f"there: {IOMMUFD_NODE}")
    for rule in node.spec.rules:
        if isinstance(rule, PciRule | MdevRule) and rule.iommufd is Iommufd.ONLY:
            return wrong(
                f"no {IOMMUFD_NODE}, and {rule.name} has iommufd: only",
                "modprobe iommufd if this kernel has it (CONFIG_IOMMUFD); else say iommufd: auto or never",
            )
    return note(f"no {IOMMUFD_NODE}; no resource requires it")


def check_container_node(node: Node) -> Finding:
    """Is the node through which QEMU opens groups there?"""
    if CONTAINER_NODE in node.host.nodes:
        return ok(f"there: {CONTAINER_NODE}")
    if not node.host.vfio_loaded:
        return unseen("it is created with vfio-pci")
    to_do = "look for udev or container mounts that hide /dev/vfio"
    return wrong(f"no {CONTAINER_NODE}, though vfio-pci is loaded", to_do)


def check_groups(node: Node) -> Iterator[tuple[str, Finding]]:
    """How many groups are there, and may VFIO have those of devices that are for VMs, or may be?"""
    host = node.host
    if not host.groups:
        yield "groups", unseen("there are none without an IOMMU")
    else:
        yield "groups", ok(f"{len(host.groups)} of {len(host.functions)} functions")
    for_vms = [group for _, group in sorted(host.groups.items()) if _is_for_vms(group, node)]
    ready = [f"{group.number} ({group.members[0]})" for group in for_vms if _is_ready_alone(group, node)]
    if ready:
        yield "groups of one", ok(f"ready: {naming.shorten(ready, _FEW)}")
    for group in for_vms:
        if not _is_ready_alone(group, node):
            yield f"group {group.number}", _check_group(group, node)
            if (together := _check_acs(group, node)) is not None:
                yield f"ACS above group {group.number}", together


def _is_for_vms(group: Group, node: Node) -> bool:
    members = node.host.members(group.number)
    return any(groups.is_assignable(each) or expected(each, node.host, node.spec) for each in members)


def _is_ready_alone(group: Group, node: Node) -> bool:
    usable = not group.no_iommu and not groups.is_kept_by_firmware(group, node.host)
    members = node.host.members(group.number)
    usable = usable and _find_boot_framebuffer(members, node) is None
    return usable and len(group.members) == 1 and all(map(groups.is_assignable, members))


def _find_boot_framebuffer(members: Sequence[PciFunction], node: Node) -> tuple[PciFunction, str] | None:
    """Return the function in whose memory the firmware's framebuffer is, and the owner of that."""
    owners = dict(node.host.boot_framebuffers)
    return next(((each, owners[each.address]) for each in members if each.address in owners), None)


def _check_group(group: Group, node: Node) -> Finding:
    members = node.host.members(group.number)
    blocking = groups.find_blockers(members)
    seen = naming.shorten([f"{each.address} ({each.driver or 'no driver'})" for each in members], _FEW)
    ready = next((each for each in members if groups.is_assignable(each)), None)
    if group.no_iommu:
        unsafe = "VFIO runs without an IOMMU (vfio-noiommu): a guest could write to all memory"
        return wrong(f"{unsafe}: {seen}", _explain(ready or members[0], "what to do"))
    if groups.is_kept_by_firmware(group, node.host):
        kept = "firmware has memory mapped 1:1 for it, so VFIO cannot have it"
        return wrong(
            f"{kept}: {seen}", _explain(ready or members[0], "where to look in the firmware's setup")
        )
    if ready is not None and (shown := _find_boot_framebuffer(members, node)) is not None:
        held = f"the framebuffer of the firmware ({shown[1]}) holds memory of {shown[0].address}"
        return wrong(f"{held}: {seen}", _explain(shown[0], "what to do"))
    if not blocking:
        return ok(f"viable: {seen}")
    if ready is not None:
        drivers = naming.shorten([f"{each.address} ({each.driver})" for each in blocking])
        to_do = _explain(ready, f"what to do about {blocking[0].address}")
        return wrong(f"not viable, {drivers} has a host driver: {seen}", to_do)
    if used := next((each for each in blocking if classes.describe_uses(each)), None):
        return note(f"{used.address} is {classes.describe_uses(used)}: {seen}", "leave it to the host")
    to_do = _explain(blocking[0], "what to look at before it is bound")
    return note(f"on host drivers, so not offered: {seen}", to_do)


def _explain(function: PciFunction, what: str) -> str:
    return f"nodeagent explain {function.address} says {what}"


def _check_acs(group: Group, node: Node) -> Finding | None:
    """Which bridge keeps several cards in one group?"""
    members = [each for each in node.host.members(group.number) if not each.bridge]
    bridges = _topmost_bridges(group, node)
    if not bridges or len({each.address.rpartition(".")[0] for each in members}) < 2:
        return None
    below = [each.address for each in members if not set(bridges).isdisjoint(each.ports)]
    why, to_do = _why_together(below, node)
    return note(f"{naming.shorten(bridges)} {why}, so the group has {naming.shorten(below)}", to_do)


def _topmost_bridges(group: Group, node: Node) -> list[PciAddress]:
    """Return the bridges of the group that other members are below, without those below each other."""
    members = node.host.members(group.number)
    above = {name for each in members for name in each.ports}
    found = [each for each in members if each.bridge and each.address in above]
    names = {each.address for each in found}
    return [each.address for each in found if not names.intersection(each.ports)]


def _why_together(below: Sequence[PciAddress], node: Node) -> tuple[str, str]:
    """Return why a bridge keeps these functions together, and what to do.

    A function of PCI Express has a link speed. To read it would wake the function
    (``pcie_dev_attrs_are_visible`` in drivers/pci/pci-sysfs.c).
    """
    express = {each for each in node.host.functions if node.root.exists(f"{DEVICES}/{each}/max_link_speed")}
    if not express:
        why = "has no ACS, or leads to conventional PCI"
        return why, f"{_ONE_VM}move one below another root port"
    if express.isdisjoint(below):
        return "leads to conventional PCI, which has no ACS", f"{_ONE_VM}move one to a slot of PCI Express"
    to_do = f"{_ONE_VM}move one below another root port, or see if the firmware's setup has ACS"
    return "has no ACS", to_do


def check_used_by_host(node: Node) -> Finding | None:
    """Which functions does the host use itself?"""
    uses = [(each, each.uses.found) for each in node.host.functions.values() if each.usable and each.uses]
    used = [f"{function.address} ({'; '.join(map(str, found))})" for function, found in uses if found]
    return note(naming.shorten(used), "never bind these to vfio-pci") if used else None


def check_uses_seen(node: Node) -> Finding | None:
    """Which uses by the host cannot be seen from here?"""
    usable = [each for each in node.host.functions.values() if each.usable]
    hidden = sorted({why for each in usable if each.uses is not None for why in each.uses.unseen})
    if hidden:
        return unseen("; ".join(hidden), _ON_THE_NODE)
    if usable and all(each.uses is None for each in usable):
        return unseen("not looked for", _ON_THE_NODE)
    return None
