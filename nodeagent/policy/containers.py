# SPDX-License-Identifier: Apache-2.0
"""What containers and virtual machines have of a function that is on a driver of the host. Pure.

A USB device behind its controller, a node of what its driver makes: whoever has that loses it when the
function gets another driver.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.model.allocation import UNNAMED
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress
from nodeagent.model.nodes import DevNode
from nodeagent.model.snapshot import Snapshot


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
    return None


def _not_back(address: PciAddress, snapshot: Snapshot) -> str | None:
    """A node that a pod was given, that is not there, and that may be of this function, in words.

    It may be away for a moment only, as when a USB device is reset, or have gone with the driver.
    """
    for path in snapshot.paths_away:
        if _may_be_of(address, path, snapshot):
            return (
                f"{path}, which a pod was given, may have gone with the driver of {address}, and is not back"
            )
    return None


def _may_be_of(address: PciAddress, path: str, snapshot: Snapshot) -> bool:
    """By what it was seen behind, as long as it was there; of what was never seen, by when it was away."""
    seen = snapshot.gone_nodes.get(path)
    if seen is not None and not seen.vacant:
        return address in seen.functions
    away = snapshot.let_go.get(address)
    return away is not None and path not in away


def gone(before: Snapshot, host: Host) -> Mapping[str, DevNode]:
    """The nodes that pods were given and that this Host has no more, as they were seen last."""
    known = {**before.gone_nodes, **before.host.dev_nodes}
    missing = (path for path in before.given_paths if path not in host.dev_nodes)
    found = {path: known[path] for path in missing if path in known}
    return before.gone_nodes if found == before.gone_nodes else found


def known_part_of(address: PciAddress, snapshot: Snapshot) -> str | None:
    """The same, of what is known to have been given."""
    had = snapshot.had_behind.get(address)
    return None if had is None else f"{had.holder or UNNAMED} has {had.what}, which is behind {address}"
