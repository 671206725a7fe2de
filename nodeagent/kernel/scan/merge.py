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
from nodeagent.model.ids import PciAddress

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

K = TypeVar("K")
V = TypeVar("V")

_NOTHING = object()


def merge(
    old: Mapping[K, V],
    read: Mapping[K, V | None],
    whole: bool,
    order: Callable[[K], SupportsRichComparison],
) -> Mapping[K, V]:
    """``old`` with what was read: all that there is (``whole``), or only some keys.

    ``order`` gives the sort key of the table, which is in order always.
    """
    present = {key: _keep(old, key, value) for key, value in read.items() if value is not None}
    if whole:
        return old if _same(old, present) else present
    absent = [key for key, value in read.items() if value is None and key in old]
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


def recover(
    functions: dict[PciAddress, PciFunction | None], recoveries: Mapping[PciAddress, Recovery]
) -> None:
    """Complete the functions with what AER events said of them last."""
    for address, recovery in recoveries.items():
        function = functions.get(address)
        if function is not None:
            functions[address] = function._replace(recovery=recovery)


def same_or_new(previous: Host, host: Host, read: Mapping[str, Collection[Any]] | None) -> Host:
    """``previous`` itself if no part differs, else ``host`` with what leads to it from ``previous``.

    ``read`` has the keys that were read, by table, if that was not everything: nothing else can differ.
    """
    if all(_unchanged(previous, host, part.name) for part in fields(Host) if part.compare):
        return previous
    if read is None:
        changes = replace(host, changes=None).changes_since(previous)
    else:
        changes = Changes(**{name: _differing(previous, host, name, read) for name in Changes._fields})
    return replace(host, generation=previous.generation + 1, changes=changes)


def _differing(previous: Host, host: Host, table: str, read: Mapping[str, Collection[Any]]) -> frozenset[Any]:
    before, after = getattr(previous, table), getattr(host, table)
    return frozenset(key for key in read[table] if before.get(key) is not after.get(key))


def _unchanged(previous: Host, host: Host, name: str) -> bool:
    before: Any = getattr(previous, name)
    after: Any = getattr(host, name)
    if isinstance(before, Mapping):
        return before is after
    return bool(before == after)
