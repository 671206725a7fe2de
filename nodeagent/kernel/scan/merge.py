# SPDX-License-Identifier: Apache-2.0
"""Joins what was read with what was known, keeping every unchanged object.

Pure. Readers of a Host find out what changed by identity, so an equal new value is dropped for the old one,
an unchanged table for the old table, and an unchanged Host for the old Host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.model.host import Changes, Host, PciFunction, Recovery
from nodeagent.model.ids import GroupNumber, PciAddress

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

K = TypeVar("K")
V = TypeVar("V")

Read = tuple[Collection[PciAddress], Collection[GroupNumber], Collection[str]]

_NOTHING = object()


def merge(
    old: Mapping[K, V],
    found: Mapping[K, V | None],
    whole: bool,
    order: Callable[[K], SupportsRichComparison],
) -> Mapping[K, V]:
    """``old`` with what was found: all of it (``whole``), or only the keys that were read.

    ``order`` gives the sort key of the table, which is in order always.
    """
    present = {key: _keep(old, key, value) for key, value in found.items() if value is not None}
    if whole:
        return old if _same(old, present) else present
    absent = [key for key, value in found.items() if value is None and key in old]
    changed = {key: v for key, v in present.items() if v is not old.get(key, _NOTHING)}
    if not absent and not changed:
        return old
    merged = {**old, **changed}
    for key in absent:
        del merged[key]
    if all(key in old for key in changed):
        return merged
    return {key: merged[key] for key in sorted(merged, key=order)}


def _keep(old: Mapping[K, V], key: K, value: V) -> V:
    known = old.get(key)
    return known if known is not None and known == value else value


def _same(old: Mapping[K, V], new: Mapping[K, V]) -> bool:
    return len(old) == len(new) and all(old.get(key, _NOTHING) is value for key, value in new.items())


def recovered(
    found: Mapping[str, PciFunction | None], recoveries: Mapping[PciAddress, Recovery]
) -> dict[PciAddress, PciFunction | None]:
    """The functions with what AER events said of them last."""
    functions = {PciAddress(key): function for key, function in found.items()}
    for address, recovery in recoveries.items():
        function = functions.get(address)
        if function is not None:
            functions[address] = replace(function, recovery=recovery)
    return functions


def same_or_new(previous: Host, host: Host, read: Read | None) -> Host:
    """``previous`` itself if no part differs, else ``host`` with what leads to it from ``previous``.

    ``read`` names what was read, if that was not everything: nothing else can differ.
    """
    if all(_unchanged(previous, host, f.name) for f in fields(Host) if f.compare):
        return previous
    if read is None:
        changes = replace(host, changes=None).changes_since(previous)
    else:
        changes = Changes(
            frozenset(key for key in read[0] if previous.functions.get(key) is not host.functions.get(key)),
            frozenset(key for key in read[1] if previous.groups.get(key) is not host.groups.get(key)),
            frozenset(key for key in read[2] if previous.mdevs.get(key) is not host.mdevs.get(key)),
        )
    return replace(host, generation=previous.generation + 1, changes=changes)


def _unchanged(previous: Host, host: Host, name: str) -> bool:
    before: Any = getattr(previous, name)
    after: Any = getattr(host, name)
    if isinstance(before, Mapping):
        return before is after
    return bool(before == after)
