# SPDX-License-Identifier: Apache-2.0
"""Readiness of the IOMMU groups that matter: what is in them, may VFIO have them, what keeps them large.

A group matters if something in it is ready for a VM, or is expected to be given to one. The kernel joins what
is below a bridge to the bridge's own group where that lacks ACS, for its devices could reach each other past
the IOMMU; and all behind a bridge to conventional PCI, which the IOMMU cannot tell apart
(``pci_device_group`` in drivers/iommu/iommu.c). So the bridge to blame is a member of the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodeagent.model.host import Group, Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.readiness import ReadinessLine
from nodeagent.policy import classes, groups, naming
from nodeagent.policy.offer.remarks import expected
from nodeagent.policy.ready.lines import Evidence, Section

_HERE = Section("IOMMU groups")
_FEW = 16  # groups that are listed one by one though there is nothing to say of them
_UNSAFE = "VFIO runs without an IOMMU (vfio-noiommu): a guest could write to all memory"
_TOGETHER = "one virtual machine gets them all, none while the host uses one; "
_NO_ACS = f"{_TOGETHER}move one below another root port, or see if the firmware's setup has ACS"
_CONVENTIONAL = f"{_TOGETHER}move one to a slot of PCI Express"
_EITHER = f"{_TOGETHER}move one below another root port"
_LOOK_FROM_NODE = "ask on the node itself, as root, in its PID and network namespaces"


def lines(evidence: Evidence) -> Iterator[ReadinessLine]:
    """How many there are, then those that matter, then what the host itself uses."""
    host = evidence.host
    if not host.groups:
        yield _HERE.unseen("groups", "there are none without an IOMMU")
    else:
        yield _HERE.ok("groups", f"{len(host.groups)} of {len(host.functions)} functions")
    mattering = [group for _, group in sorted(host.groups.items()) if _matters(group, evidence)]
    easy = [group for group in mattering if _easy(group, host)]
    if easy:
        yield _alone(easy)
    for group in mattering:
        if group not in easy:
            yield _group(group, host)
            yield from _acs(group, evidence)
    yield from _used(host)


def _matters(group: Group, evidence: Evidence) -> bool:
    host, desired = evidence.host, evidence.desired
    return any(groups.ready(each) or expected(each, host, desired) for each in host.members(group.number))


def _easy(group: Group, host: Host) -> bool:
    """One function, and ready: there is nothing to say of it."""
    members = host.members(group.number)
    sound = not group.no_iommu and not groups.kept_by_firmware(group, host)
    return len(group.members) == 1 and sound and all(map(groups.ready, members))


def _alone(easy: Sequence[Group]) -> ReadinessLine:
    named = [f"{group.number} ({', '.join(group.members)})" for group in easy]
    return _HERE.ok("groups of one", f"ready: {naming.few(named, _FEW)}")


def _group(group: Group, host: Host) -> ReadinessLine:
    check, members = f"group {group.number}", host.members(group.number)
    first = next((each for each in members if groups.ready(each)), None)
    seen = naming.few([_named(member) for member in members], _FEW)
    if group.no_iommu:
        return _HERE.wrong(check, f"{_UNSAFE}: {seen}", _explain(first, "what to do"))
    if groups.kept_by_firmware(group, host):
        what = f"firmware has memory mapped 1:1 for it, so it cannot be given: {seen}"
        return _HERE.wrong(
            check, what, _explain(first or members[0], "where to look in the firmware's setup")
        )
    blocking = groups.blockers(members)
    if not blocking:
        return _HERE.ok(check, f"viable: {seen}")
    what = naming.few([f"{each.address} ({each.driver})" for each in blocking])
    if first is not None:
        to_do = _explain(first, f"what to do about {blocking[0].address}")
        return _HERE.wrong(check, f"not viable, {what} has a host driver: {seen}", to_do)
    if used := next((each for each in blocking if classes.in_use(each)), None):
        return _HERE.note(check, f"{used.address} is {classes.in_use(used)}: {seen}", "leave it to the host")
    to_do = _explain(blocking[0], "what to look at before it is bound")
    return _HERE.note(check, f"on host drivers, so not offered: {seen}", to_do)


def _explain(function: PciFunction | None, what: str) -> str:
    return f"nodeagent explain {function.address if function else 'ADDRESS'} says {what}"


def _named(function: PciFunction) -> str:
    return f"{function.address} ({function.driver or 'no driver'})"


def _acs(group: Group, evidence: Evidence) -> Iterator[ReadinessLine]:
    """The bridge that keeps several cards in one group, if there is one."""
    members = [each for each in evidence.host.members(group.number) if not each.bridge]
    if len({each.address.rpartition(".")[0] for each in members}) < 2:
        return
    above = _bridges(group, evidence.host)
    if not above:
        return
    below = [each.address for each in members if not set(above).isdisjoint(each.ports)]
    why, to_do = _why_together(below, evidence)
    check = f"ACS above group {group.number}"
    yield _HERE.note(check, f"{naming.few(above)} {why}, so the group has {naming.few(below)}", to_do)


def _bridges(group: Group, host: Host) -> list[PciAddress]:
    """The topmost bridges of the group that other members are below."""
    members = host.members(group.number)
    above = {name for each in members for name in each.ports}
    found = [each for each in members if each.bridge and each.address in above]
    names = {each.address for each in found}
    return [each.address for each in found if not names.intersection(each.ports)]


def _why_together(below: Sequence[PciAddress], evidence: Evidence) -> tuple[str, str]:
    platform = evidence.around.platform
    express = None if isinstance(platform, str) else platform.express
    if express is None:
        return "has no ACS, or leads to conventional PCI", _EITHER
    if express.isdisjoint(below):
        return "leads to conventional PCI, which has no ACS", _CONVENTIONAL
    return "has no ACS", _NO_ACS


def _used(host: Host) -> Iterator[ReadinessLine]:
    """What nobody should bind, and what of that could not be seen."""
    usable = [each for each in host.functions.values() if each.usable]
    used = [_use(each) for each in usable if each.uses is not None and each.uses.found]
    if used:
        yield _HERE.note("used by the host", naming.few(used), "never bind these to vfio-pci")
    unseen = sorted({why for each in usable if each.uses is not None for why in each.uses.unseen})
    if unseen:
        yield _HERE.unseen("used by the host?", "; ".join(unseen), _LOOK_FROM_NODE)
    elif usable and all(each.uses is None for each in usable):
        yield _HERE.unseen("used by the host?", "nobody has looked", _LOOK_FROM_NODE)


def _use(function: PciFunction) -> str:
    found = () if function.uses is None else function.uses.found
    return f"{function.address} ({'; '.join(map(str, found))})"
