# SPDX-License-Identifier: Apache-2.0
"""Why a device is not taken from the host that uses it, in two lines: what is in the way, what to do. Pure.

The same for a function that is to be bound and for a USB device that is to be given: what is mounted, up or
typed on stays, unless an operator answers for it; what could not be seen stays as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.model.uses import HostUses


def refusals(uses: HostUses, name: str, forced: bool) -> Iterator[tuple[str, str]]:
    """What, and what to do, of each use that keeps the device ``name`` with its host."""
    counting = uses.counting(forced)
    for use in counting.found:
        yield f"in use by the host ({use})", "leave it out, or have the host give it up"
    for unseen in counting.unseen:
        hint = (
            "run nodeagent where it can be seen (the host's PID and network namespaces); "
            f"or name {name} in force if you know better"
        )
        yield f"it cannot be seen from here: {unseen}", hint
