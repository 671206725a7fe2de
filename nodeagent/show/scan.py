# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent scan`` prints: all devices by IOMMU group, and what becomes of each."""

from __future__ import annotations

from nodeagent.model.host import Host, PciFunction
from nodeagent.policy import explain, groups, offers
from nodeagent.policy.turn import Outcome
from nodeagent.show.table import table

_HEAD = ("ADDRESS", "GROUP", "VIABLE", "ID", "CLASS", "DRIVER", "NUMA", "WHAT BECOMES OF IT")


def text(outcome: Outcome) -> str:
    """The table of functions, then the other facts of the host."""
    host = outcome.facts.host
    rows = [_row(function, outcome) for function in _by_group(host)]
    return "\n".join([table(_HEAD, rows) if rows else "no PCI devices", "", *_facts(host)])


def _by_group(host: Host) -> list[PciFunction]:
    far = 1 << 62
    return sorted(
        host.functions.values(),
        key=lambda function: (far if function.group is None else function.group, function.address),
    )


def _row(function: PciFunction, outcome: Outcome) -> tuple[str, ...]:
    members = outcome.facts.host.members(function.group)
    viable = "-" if function.group is None else "no" if groups.blockers(members) else "yes"
    return (
        function.address,
        "-" if function.group is None else str(function.group),
        viable,
        f"{function.vendor or '?'}:{function.device or '?'}",
        (function.pci_class or "?")[:4],
        function.driver or "-",
        "-" if function.numa_node is None else str(function.numa_node),
        fate(function, outcome),
    )


def fate(function: PciFunction, outcome: Outcome) -> str:
    """The resource and health of a function, or a dash."""
    found = outcome.offers.get(offers.unit_of(function), ())
    offer = next((each for each in found if function.address in each.functions), None)
    if offer is None:
        told = explain.explain(function.address, outcome)
        return "" if told is None or function.unreadable is None else function.unreadable
    reason = offer.device.reason
    return offer.claim.resource if reason is None else f"{offer.claim.resource}: {reason.what}"


def _facts(host: Host) -> list[str]:
    mdevs = [f"{mdev.uuid}  {mdev.type_id or '?'} on {mdev.parent or '?'}" for mdev in host.mdevs.values()]
    facts = [
        f"{len(host.functions)} functions, {len(host.groups)} IOMMU groups, {len(host.mdevs)} mdevs",
        f"IOMMU: {'active' if host.iommu else 'not active: no device can be given to a virtual machine'}",
        f"nodes: {', '.join(sorted(host.nodes)) or 'none'}",
    ]
    return [*facts, *(f"mdev {line}" for line in mdevs)]
