# SPDX-License-Identifier: Apache-2.0
"""What containers and virtual machines have of a function that is on a driver of the host. Pure.

A USB device behind its controller, a node of what its driver makes: whoever has that loses it when the
function gets another driver.
"""

from __future__ import annotations

from nodeagent.model.allocation import UNNAMED
from nodeagent.model.ids import PciAddress
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
    """A node that a pod was given since the function was let go of, and that is not there, in words."""
    had = snapshot.let_go.get(address)
    for path in snapshot.given_paths if had is not None else ():
        if path not in snapshot.host.dev_nodes and path not in (had or ()):
            return (
                f"{path}, which a pod was given, may have gone with the driver of {address}, and is not back"
            )
    return None


def known_part_of(address: PciAddress, snapshot: Snapshot) -> str | None:
    """The same, of what is known to have been given."""
    had = snapshot.had_behind.get(address)
    return None if had is None else f"{had.holder or UNNAMED} has {had.what}, which is behind {address}"
