# SPDX-License-Identifier: Apache-2.0
"""Merges the result of a scan with the previous Host. Does no I/O; ``scanner`` calls it after each scan.

A value that equals the previous one stays the same object, so two Hosts are compared by identity. Facts
that sysfs does not show are added here: results of PCI error recoveries, the lowest open counts, uses of
functions by the host, numbers of VFs, and VFs that remained after their PF was removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.kernel.scan import pci, usb
from nodeagent.model.host import Changes, Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress, pci_order

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

K = TypeVar("K")
V = TypeVar("V")

_NOTHING = object()


def assemble(
    found: Mapping[str, Mapping[str, Any]],
    frame: Host,
    previous: Host,
    recoveries: Mapping[PciAddress, Recovery],
    *,
    whole: bool,
) -> Host:
    """Return the Host made of ``found``, the values by table and key; a value of None means that the object
    no longer exists.

    ``frame`` is a Host with all facts besides devices; ``whole``: everything was read.
    """
    read: dict[str, Any] = {table: dict(values) for table, values in found.items()}
    add_unseen_facts(read["functions"], previous.functions, recoveries)
    pci.number_vfs(read["functions"], {} if whole else previous.functions)
    read["usb"] = usb.assign_ids(read["usb"], previous.usb, whole)
    tables: dict[str, Any] = {
        table: merge(getattr(previous, table), values, whole, pci_order if table == "functions" else None)
        for table, values in read.items()
    }
    return same_or_new(previous, replace(frame, **tables), None if whole else read)


def merge(
    old: Mapping[K, V],
    read: Mapping[K, V | None],
    whole: bool,
    order: Callable[[Any], SupportsRichComparison] | None,
) -> Mapping[K, V]:
    """Return the table ``old`` with the values that were read: all values (``whole``), or those of some keys.

    ``order`` returns the sort key of a table that is always sorted; None: the table is sorted by its keys.
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
    keys: list[Any] = list(merged)
    return {key: merged[key] for key in sorted(keys, key=order)}


def keep_equal(old: Mapping[K, V], new: Mapping[K, V]) -> Mapping[K, V]:
    """Return ``old`` itself if it equals ``new``, else ``new`` with the equal values of ``old``."""
    return old if old == new else {key: _keep(old, key, value) for key, value in new.items()}


def _keep(old: Mapping[K, V], key: K, value: V) -> V:
    known = old.get(key)
    return known if known is not None and known == value else value


def _same(old: Mapping[K, V], new: Mapping[K, V]) -> bool:
    return len(old) == len(new) and all(old.get(key, _NOTHING) is value for key, value in new.items())


def add_unseen_facts(
    functions: dict[PciAddress, PciFunction | None],
    known: Mapping[PciAddress, PciFunction],
    recoveries: Mapping[PciAddress, Recovery],
) -> None:
    """Complete the functions with AER recovery results, and with facts of the previous Host that are still
    valid.
    """
    for address, function in functions.items():
        if function is None:
            continue
        if (before := known.get(address)) is not None:
            function = _with_counts(before, _with_uses(before, function))
        if address in recoveries:
            function = function._replace(recovery=recoveries[address])
        functions[address] = function


def _with_uses(before: PciFunction, function: PciFunction) -> PciFunction:
    """Return the function with the host uses that an earlier scan found, if the function is unchanged."""
    same = (function.driver, function.inode) == (before.driver, before.inode)
    return function._replace(uses=before.uses) if same and before.uses and function.usable else function


def _with_counts(before: PciFunction, function: PciFunction) -> PciFunction:
    """Return the function with the facts about its open count that are still valid.

    For a function on a VFIO driver, these facts are the lowest open count since the bind, and the process
    that had the function open at the present count. For a function without a driver, this fact is the open
    count that the former host driver has left, or the lowest count under the former VFIO driver.
    """
    if function.driver is None and before.inode == function.inode:
        left = before.idle if before.driver is None else function.enable
        lowest = before.idle if before.vfio else before.lowest
        return function._replace(idle=None if before.vfio else left, lowest=lowest)
    if function.vfio and _binding(before) == _binding(function):
        idle = min((each for each in (before.idle, function.enable) if each is not None), default=None)
        sight = before.sight if before.enable == function.enable else None
        if (idle, sight) != (function.idle, function.sight):
            return function._replace(idle=idle, sight=sight)
    return function


def _binding(function: PciFunction) -> tuple[object, ...]:
    """Return a value that changes with each new binding, even of the same driver."""
    return function.inode, function.driver, function.vfio_inode


def same_or_new(previous: Host, host: Host, read: Mapping[str, Collection[Any]] | None) -> Host:
    """Return ``previous`` itself if nothing differs, else ``host`` with indexes reused from ``previous``.

    ``read`` has the keys that were read, by table; None: everything was read. The values of other keys cannot
    differ.
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
