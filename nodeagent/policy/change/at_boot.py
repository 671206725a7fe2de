# SPDX-License-Identifier: Apache-2.0
"""The functions that are bound to VFIO at boot, before the host drivers. Pure.

If a function that the host uses now were bound to VFIO at boot, the host would lack a disk, a network
interface or the boot display. Functions in use are therefore refused as in ``bindings``, except for uses that
end with a boot: open files, and allocations to pods. IOMMU groups are bound as a whole, as with a rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nodeagent.base.errors import NodeagentError
from nodeagent.model.change import AtBoot, Outcome, Request, Result
from nodeagent.model.host import Host, HostUses, PciFunction, UseKind
from nodeagent.model.ids import VFIO_PCI, PciAddress
from nodeagent.model.problem import Problem
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups
from nodeagent.policy.change import bindings, guards, manual_requests


class BootPlan(NamedTuple):
    """The results, one for each IOMMU group, and the entries for the files that bind functions at boot."""

    results: tuple[Result, ...]
    entries: tuple[AtBoot, ...]


def plan(request: Request, snapshot: Snapshot, known: Sequence[AtBoot]) -> BootPlan:
    """The ``known`` entries and the entries for the named functions.

    :raises NodeagentError: if a name matches no function.
    """
    host = snapshot.host
    named = frozenset(manual_requests.find_functions(request.names, host))
    entries = {each.address: each for each in known}
    results: list[Result] = []
    for members in bindings.find_groups(named, host):
        requested = [each for each in members if each.address in named]
        refusals = tuple(dict.fromkeys(_find_refusals(members, requested, snapshot)))
        built = () if refusals else tuple(_build_entries(members, requested, request.driver))
        new = [each for each in built if entries.get(each.address) != each]
        entries.update({each.address: each for each in built})
        addresses = tuple(each.address for each in built or requested)
        outcome = Outcome.REFUSED if refusals else Outcome.PLANNED if new else Outcome.NOTHING
        results.append(Result(addresses, outcome, _describe(addresses, request.driver), refusals))
    return BootPlan(tuple(results), tuple(entries[address] for address in sorted(entries)))


def remove_entries(request: Request, snapshot: Snapshot, known: Sequence[AtBoot]) -> tuple[AtBoot, ...]:
    """The ``known`` entries without those of the named groups; a name may be that of a function that left the
    host.
    """
    wanted = [manual_requests.parse_name(name) for name in request.names]
    host = snapshot.host
    named = [
        each
        for each in known
        if any(manual_requests.is_entry_selected(each, selector) for selector in wanted)
    ]
    here = [address for each in named if (address := PciAddress(each.address)) in host.functions]
    here += _find_named(request.names, host)
    beside = {each.address for members in bindings.find_groups(here, host) for each in members}
    gone = beside | {each.address for each in named}
    return tuple(each for each in known if each.address not in gone)


def _find_named(names: Sequence[str], host: Host) -> Sequence[PciAddress]:
    """The named functions on the host; empty if a name matches none."""
    try:
        return manual_requests.find_functions(names, host)
    except NodeagentError:
        return ()


def _find_refusals(
    members: Sequence[PciFunction], requested: Sequence[PciFunction], snapshot: Snapshot
) -> Iterator[Problem]:
    head, host = requested[0], snapshot.host
    group = None if head.group is None else host.groups.get(head.group)
    found = [(head, each) for each in guards.find_group_refusals(group, (), host)]
    found += [(head, each) for each in guards.find_bridge_refusals(members)]
    for member in members:
        if member in requested or not _is_kept(member):
            judged = member._replace(uses=_find_lasting_uses(member.uses))
            refusals = guards.find_function_refusals(judged, snapshot, forced=False)
            found += [(member, each) for each in refusals]
            found += [(member, each) for each in bindings.refuse_vf_parent(member, snapshot)]
    for member, problem in found:
        text = f"{member.address} is not bound at boot: {problem.message}"
        yield problem._replace(subject=member.address, message=text)


def _find_lasting_uses(uses: HostUses | None) -> HostUses | None:
    """The uses by the host that exist after a boot as well."""
    if uses is None:
        return None
    return uses._replace(found=tuple(use for use in uses.found if use.kind is not UseKind.OPEN))


def _is_kept(function: PciFunction) -> bool:
    """True if the function keeps its driver: a bridge, or a driver that VFIO allows in the group."""
    return guards.is_bridge(function) or function.driver in groups.FRIENDLY_DRIVERS


def _build_entries(
    members: Sequence[PciFunction], requested: Sequence[PciFunction], driver: str
) -> Iterator[AtBoot]:
    """The entries of a group: devices with the ids of the named ones get ``driver``, others get vfio-pci."""
    alike = {(each.vendor, each.device) for each in requested}
    for each in members:
        if (each in requested or not _is_kept(each)) and each.vendor and each.device:
            to = driver if (each.vendor, each.device) in alike else VFIO_PCI
            yield AtBoot(each.address, each.vendor, each.device, to)


def _describe(addresses: Sequence[str], driver: str) -> str:
    return f"{', '.join(addresses)} to {driver} from the next boot on"
