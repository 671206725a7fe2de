# SPDX-License-Identifier: Apache-2.0
"""Desired types of mdevs and vGPUs: selects the list for the labels of the Node, and finds the type ids for
the names in the list. Pure.

The lists of all matching ``nodes`` entries together replace the general list, in the order of the
configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nodeagent.model.host import MdevType
from nodeagent.model.spec import MdevSpec, WantedType
from nodeagent.policy import selectors

_GRAPHICS = "GFX"


def list_for_node(wanted: MdevSpec, labels: Mapping[str, str]) -> tuple[WantedType, ...]:
    """The list of desired types for a Node with these labels, without duplicates."""
    fitting = [node for node in wanted.nodes if all(labels.get(key) == value for key, value in node.labels)]
    override = [wanted_type for node in fitting for wanted_type in node.types]
    return tuple(dict.fromkeys(override or wanted.types))


def match_by_id(wanted: Iterable[WantedType], mdev_types: Sequence[MdevType]) -> dict[str, WantedType]:
    """vGPU type id → the first entry of the list that names the type, in the order of the list."""
    matched: dict[str, WantedType] = {}
    for each in wanted:
        for mdev_type in _find_types(each, mdev_types):
            matched.setdefault(mdev_type.type_id, each)
    return matched


def _find_types(wanted: WantedType, mdev_types: Sequence[MdevType]) -> list[MdevType]:
    """The types that match a desired name. If no type has the suffix GFX, the name without it is used.

    The suffix GFX requests a GPU instance with the MIG attribute gfx, but no vGPU type has the suffix in its
    name (vgpu-device-manager, pkg/vgpu). A name with any other suffix is the name of a different type:
    A100-1-5CME has media engines, A100-1-5C has none.
    """
    found = [mdev_type for mdev_type in mdev_types if selectors.is_type_match(wanted, mdev_type)]
    if found or not wanted.short or not wanted.name.endswith(_GRAPHICS):
        return found
    return _find_types(replace(wanted, name=wanted.name.removesuffix(_GRAPHICS)), mdev_types)


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
    """The vGPU types whose names are unknown, so that a configured name may mean one of them.

    A type without a known name counts only while a desired or excluded name matches no known type.
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
