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
class Place:
    """Where a device sits."""

    group: int | str | None = None
    numa: int | None = None
    root: str = ""


NOWHERE = Place()


def choose(
    available: Sequence[str], must: Sequence[str], size: int, places: Mapping[str, Place]
) -> tuple[str, ...]:
    """Exactly ``size`` ids out of ``available``, all of ``must`` first.

    Fewer come back only if ``available`` holds fewer. Raises Refused if ``must`` is larger than ``size``.
    """
    if len(must) > size:
        raise Refused(f"number of MustIncludeDeviceIDs ({len(must)}) exceeds allocation size ({size})")
    chosen = list(must)
    left = [device_id for device_id in dict.fromkeys(available) if device_id not in set(must)]
    while len(chosen) < size and left:
        best = _next(chosen, left, size - len(chosen), places)
        chosen.append(best)
        left.remove(best)
    return tuple(chosen)


def _next(chosen: Sequence[str], left: Sequence[str], wanted: int, places: Mapping[str, Place]) -> str:
    taken = [places.get(device_id, NOWHERE) for device_id in chosen]
    groups = {place.group for place in taken if place.group is not None}
    numas = {place.numa for place in taken if place.numa is not None}
    roots = {place.root for place in taken if place.root}
    spots = [places.get(device_id, NOWHERE) for device_id in left]
    in_group = Counter(place.group for place in spots)
    in_numa = Counter(place.numa for place in spots)
    in_root = Counter(place.root for place in spots)

    def rank(position: int) -> tuple[object, ...]:
        place = spots[position]
        fresh = place.group not in groups
        return (
            fresh,
            fresh and in_group[place.group] > wanted,
            bool(numas) and place.numa not in numas,
            _fit(in_numa[place.numa], wanted),
            bool(roots) and place.root not in roots,
            _fit(in_root[place.root], wanted),
            position,
        )

    return left[min(range(len(left)), key=rank)]


def _fit(present: int, wanted: int) -> tuple[bool, int]:
    """Best fit: first what is large enough, the smallest of it; else the largest."""
    enough = present >= wanted
    return (not enough, present if enough else -present)
