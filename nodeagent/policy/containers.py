# SPDX-License-Identifier: Apache-2.0
"""What containers and virtual machines have of a function that is on a driver of the host. Pure.

A USB device behind its controller, a node of what its driver makes: whoever has that loses it when the
function gets another driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodeagent.model.allocation import UNNAMED
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress
from nodeagent.model.nodes import DevNode
from nodeagent.model.snapshot import Had, Snapshot, placed


def part_of(address: PciAddress, snapshot: Snapshot) -> str | None:
    """What somebody has that is behind the function, in words; None if nobody is known to."""
    if address in snapshot.behind:
        return f"what is behind {address} was given to a pod a moment ago"
    return unknown(snapshot) or known_part_of(address, snapshot) or _not_back(address, snapshot)


def unknown(snapshot: Snapshot) -> str | None:
    """What may be behind any function, in words: it was given a moment ago, and is looked at yet."""
    if not snapshot.given_nodes_seen:
        return "what is behind the nodes that pods have is not known yet"
    if snapshot.unwritten is not None:
        name, each = snapshot.unwritten
        holder = snapshot.allocations.holder_of(name, each) or UNNAMED
        return f"what {holder} has as {each} of {name} is not known yet"
    if snapshot.untold is not None:
        return f"{snapshot.untold.holder or UNNAMED} has {snapshot.untold.what}, which is in no CDI file"
    return None


def _not_back(address: PciAddress, snapshot: Snapshot) -> str | None:
    """A node that a pod was given, and that may have gone with the driver of this function, in words."""
    away = snapshot.let_go.get(address)
    for path in () if away is None else snapshot.unplaced:
        if path not in (away or ()):
            return (
                f"{path}, which a pod was given, may have gone with the driver of {address}, and is not back"
            )
    return None


def remembering(before: Snapshot, host: Host, hidden: Mapping[str, DevNode]) -> Snapshot:
    """The Snapshot with what is known by now, by this Host, of what pods were given.

    ``hidden``: what the kernel has by the names of nodes that are not there.
    """
    stood_for = _stood_for(before, host)
    known = before if stood_for == before.stood_for else replace(before, stood_for=stood_for)
    seen = _sightings(known, host, hidden)
    return known if seen == known.seen_behind else replace(known, seen_behind=seen)


def _stood_for(before: Snapshot, host: Host) -> Mapping[Had, tuple[str, ...]]:
    """``stood_for`` by this Host: a file that is written anew takes nothing from who has what was in it."""
    found: dict[Had, tuple[str, ...]] = {}
    for had in before.given_cdi:
        entry = host.cdi_entries.get(had.what)
        paths = (*before.nodes_of(had), *(entry.device.paths if entry is not None else ()))
        if paths:
            found[had] = tuple(dict.fromkeys(paths))
    return found


def _sightings(
    before: Snapshot, host: Host, hidden: Mapping[str, DevNode]
) -> Mapping[str, frozenset[PciAddress]]:
    """``seen_behind`` by this Host.

    What was seen stays, also where a part of it is away, such as one of the controllers of a disk: until the
    node is seen behind something else.
    """
    found = {}
    for path in before.given_paths:
        known = before.seen_behind.get(path)
        known = _seen(before.host.dev_nodes.get(path)) if known is None else known
        now = _seen(host.dev_nodes.get(path) or hidden.get(path))
        if now is None:
            now = known
        elif known and (not now or not known.isdisjoint(now)):
            now |= known
        if now is not None:
            found[path] = now
    return found


def _seen(node: DevNode | None) -> frozenset[PciAddress] | None:
    """What a node has behind it; a guess is nothing that is to be remembered."""
    return None if node is None or node.guessed else placed(node)


def known_part_of(address: PciAddress, snapshot: Snapshot) -> str | None:
    """The same, of what is known to have been given."""
    had = snapshot.had_behind.get(address)
    return None if had is None else f"{had.holder or UNNAMED} has {had.what}, which is behind {address}"
