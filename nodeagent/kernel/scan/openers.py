# SPDX-License-Identifier: Apache-2.0
"""Adds to the Host which process has a function open whose count of opens is above zero.

The count alone proves nothing: i915 and radeon leave it above zero when they are unbound, for they never call
pci_disable_device. One look at all processes is good for as long as the count stays what it is; where the
count may be one that was left, it is repeated whenever the function is read. Called by ``scanner`` after each
scan; a look that takes too long tells nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nodeagent.base import threads
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host, PciFunction, Sight


async def add(host: Host, read: Collection[str], root: Root, looks: threads.OneByOne, limit: float) -> Host:
    """The Host with the openers of functions, of which those in ``read`` were read just now; maybe the same.

    ``limit``: seconds for the look.
    """
    wanted = [
        each
        for each in host.functions.values()
        if _is_unknown(each) or (each.address in read and _is_doubtful(each))
    ]
    if not wanted:
        return host
    seen = await looks.call(limit, in_use.find_openers, root, [each.address for each in wanted])
    changed = {}
    for each in wanted:
        sight = each.sight or Sight()
        if seen is not None:
            sight = Sight(seen.openers.get(each.address), seen.decisive)
        if sight != each.sight:
            changed[each.address] = each._replace(sight=sight)
    if not changed:
        return host
    return replace(host, functions={**host.functions, **changed}, changes=None)


def _is_unknown(function: PciFunction) -> bool:
    return function.vfio and function.driver is not None and bool(function.enable) and function.sight is None


def _is_doubtful(function: PciFunction) -> bool:
    """True if a process had it open, and the count does not tell whether that is over."""
    seen = function.sight is not None and function.sight.process is not None
    return seen and function.enable == function.idle
