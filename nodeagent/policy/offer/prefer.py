# SPDX-License-Identifier: Apache-2.0
"""Which devices to prefer when the kubelet may choose: a group first, then NUMA node, then PCIe root. Pure.

Devices are picked one after the other. The next one comes from a group that is begun already; else from a
group that fits wholly into what is still wanted; else from where the fewest devices are left over, so that
large sets stay together for those who need them. Ties go by the order of the list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodeagent.base.errors import Refused


@dataclass(frozen=True, slots=True)
class Topology:
    """Where a device sits."""

    group: int | str | None = None
    numa: int | None = None
    root: str = ""


NO_TOPOLOGY = Topology()


def choose(
    available: Sequence[str], must: Sequence[str], size: int, topologies: Mapping[str, Topology]
) -> tuple[str, ...]:
    """Exactly ``size`` ids out of ``available``, all of ``must`` first.

    Fewer come back only if ``available`` holds fewer. Raises Refused if ``must`` is larger than ``size``.
    """
    if len(must) > size:
        raise Refused(f"number of MustIncludeDeviceIDs ({len(must)}) exceeds allocation size ({size})")
    chosen = list(must)
    left = [device_id for device_id in dict.fromkeys(available) if device_id not in set(must)]
    while len(chosen) < size and left:
        best = _next(chosen, left, size - len(chosen), topologies)
        chosen.append(best)
        left.remove(best)
    return tuple(chosen)


def _next(chosen: Sequence[str], left: Sequence[str], wanted: int, topologies: Mapping[str, Topology]) -> str:
    taken = [topologies.get(device_id, NO_TOPOLOGY) for device_id in chosen]
    groups = {topology.group for topology in taken if topology.group is not None}
    numas = {topology.numa for topology in taken if topology.numa is not None}
    roots = {topology.root for topology in taken if topology.root}
    spots = [topologies.get(device_id, NO_TOPOLOGY) for device_id in left]
    in_group = Counter(topology.group for topology in spots)
    in_numa = Counter(topology.numa for topology in spots)
    in_root = Counter(topology.root for topology in spots)

    def rank(position: int) -> tuple[object, ...]:
        topology = spots[position]
        fresh = topology.group not in groups
        return (
            fresh,
            fresh and in_group[topology.group] > wanted,
            bool(numas) and topology.numa not in numas,
            _fit(in_numa[topology.numa], wanted),
            bool(roots) and topology.root not in roots,
            _fit(in_root[topology.root], wanted),
            position,
        )

    return left[min(range(len(left)), key=rank)]


def _fit(present: int, wanted: int) -> tuple[bool, int]:
    """Best fit: first what is large enough, the smallest of it; else the largest."""
    enough = present >= wanted
    return (not enough, present if enough else -present)
