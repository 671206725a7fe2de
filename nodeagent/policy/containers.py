# SPDX-License-Identifier: Apache-2.0
"""What containers and virtual machines have of a function that is on a driver of the host. Pure.

A USB device behind its controller, a node of what its driver makes: whoever has that loses it when the
function gets another driver. What was given is told by the kubelet, in the answers that it keeps, whatever
the rules say by now and whatever plugin gave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from nodeagent.model.allocation import UNNAMED, Holder
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Snapshot

_Had = tuple[str, Holder | None]
"""A USB device, a node or a CDI device, by its name; and who has it, if the kubelet says so."""


def part_of(address: PciAddress, snapshot: Snapshot) -> str | None:
    """What somebody has that is behind the function, in words; None if nobody is known to."""
    if address in snapshot.behind:
        return f"what is behind {address} was given to a pod a moment ago"
    if not snapshot.given_nodes_seen:
        return "what is behind the nodes that pods have is not known yet"
    found = next(chain(_usb(address, snapshot), _nodes(address, snapshot)), None)
    return None if found is None else f"{found[1] or UNNAMED} has {found[0]}, which is behind {address}"


def _usb(address: PciAddress, snapshot: Snapshot) -> Iterator[_Had]:
    lent = {loan.id: head for head, loans in snapshot.loans.items() for loan in loans}
    for device in snapshot.host.usb.values():
        if device.controller == address:
            holder = snapshot.holder(lent.get(device.id, device.id))
            if holder is not None or device.id in lent:
                yield device.id, holder


def _nodes(address: PciAddress, snapshot: Snapshot) -> Iterator[_Had]:
    """Nodes, also by the CDI names that stand for them."""
    nodes = snapshot.host.dev_nodes
    for name, paths, holder in _given(snapshot):
        if any(node.function == address for path in paths if (node := nodes.get(path)) is not None):
            yield name, holder


def _given(snapshot: Snapshot) -> Iterator[tuple[str, tuple[str, ...], Holder | None]]:
    """What pods were given, and which nodes that are."""
    allocations, entries = snapshot.allocations, snapshot.host.cdi_entries
    for head, loans in snapshot.loans.items():
        yield from ((loan.id, (loan.node,), snapshot.holder(head)) for loan in loans)
    for resource, ids in allocations.nodes.items():
        for device_id, paths in ids.items():
            holder = allocations.holder_of(resource, device_id)
            yield from ((path, (path,), holder) for path in paths)
    for resource, ids in allocations.cdi.items():
        for device_id, names in ids.items():
            known = (entries[each] for each in names if each in entries)
            holder = allocations.holder_of(resource, device_id)
            yield from ((entry.name, entry.device.paths, holder) for entry in known)
