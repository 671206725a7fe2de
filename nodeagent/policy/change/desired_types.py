# SPDX-License-Identifier: Apache-2.0
"""Desired types of mdevs and vGPUs: the node's list by its labels, and their names matched with cards. Pure.

The lists of all matching node overrides replace the general list; their order, and the order inside each, is
the operator's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nodeagent.model.host import MdevType
from nodeagent.model.spec import MdevSpec, WantedType
from nodeagent.policy import selectors

_MIG_SUFFIX = re.compile(r"(MEALL|(NO)?ME|GFX)$")


def list_for_node(wanted: MdevSpec, labels: Mapping[str, str]) -> tuple[WantedType, ...]:
    """The list for a node with these labels, without duplicates."""
    fitting = [node for node in wanted.nodes if all(labels.get(key) == value for key, value in node.labels)]
    override = [wanted_type for node in fitting for wanted_type in node.types]
    return tuple(dict.fromkeys(override or wanted.types))


def count_by_id(wanted: Iterable[WantedType], mdev_types: Sequence[MdevType]) -> dict[str, int | None]:
    """Type id → count, in the order of the list; the first entry that matches a type counts."""
    counts: dict[str, int | None] = {}
    for each in wanted:
        for mdev_type in _find_types(each, mdev_types):
            counts.setdefault(mdev_type.type_id, each.count)
    return counts


def _find_types(wanted: WantedType, mdev_types: Sequence[MdevType]) -> list[MdevType]:
    """The matching types; a MIG suffix that no name has is dropped, as NVIDIA's tool does."""
    found = [mdev_type for mdev_type in mdev_types if selectors.is_type_match(wanted, mdev_type)]
    plain = _MIG_SUFFIX.sub("", wanted.name) if wanted.short else wanted.name
    return found if found or plain == wanted.name else _find_types(replace(wanted, name=plain), mdev_types)


def find_ids(type_names: Iterable[str], mdev_types: Iterable[MdevType]) -> frozenset[str]:
    """The ids of the types with one of these names or ids."""
    wanted = [WantedType(name) for name in type_names]
    return frozenset(
        mdev_type.type_id
        for mdev_type in mdev_types
        if any(selectors.is_type_match(each, mdev_type) for each in wanted)
    )


def find_unclear(
    wanted: MdevSpec, listed: Sequence[WantedType], mdev_types: Sequence[MdevType]
) -> frozenset[str]:
    """The vGPU types without a known name that may be listed or excluded.

    That is possible while a listed or excluded name matches no known type.
    """
    both = (*listed, *map(WantedType, wanted.excluded))
    by_name = (each for each in both if each.short or not each.name.removeprefix("nvidia-").isdecimal())
    if all(_find_types(each, mdev_types) for each in by_name):
        return frozenset()
    return frozenset(
        mdev_type.type_id
        for mdev_type in mdev_types
        if mdev_type.name is None and mdev_type.type_id.isdecimal()
    )
