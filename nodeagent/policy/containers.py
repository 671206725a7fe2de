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
    """What a pod has that is behind the function, in words; None if no pod has anything."""
    if address in snapshot.behind:
        return f"what is behind {address} was given to a pod a moment ago"
    if not snapshot.given_nodes_seen:
        return "what is behind the nodes that pods have is not known yet"
    if (had := snapshot.had_behind.get(address)) is not None:
        return f"{had.holder or UNNAMED} has {had.what}, which is behind {address}"
    return _unknown(snapshot)


def _unknown(snapshot: Snapshot) -> str | None:
    """What a pod has that may be behind any function, in words; None if all is known.

    A node that is not there now may have been of any driver: all changes of host drivers wait for its pod.
    """
    if snapshot.unwritten is not None:
        name, each = snapshot.unwritten
        holder = snapshot.allocations.holder_of(name, each) or UNNAMED
        return f"what {holder} has as {each} of {name} is not known yet"
    if (had := snapshot.undefined_cdi) is not None:
        return f"{had.holder or UNNAMED} has {had.what}, which is in no CDI file"
    if (had := snapshot.unplaced) is not None:
        return f"{had.holder or UNNAMED} has {had.what}, which is not there: its driver is not known"
    return None
