# SPDX-License-Identifier: Apache-2.0
"""Joins what a scan has read with the Host before it. Pure; called by ``scanner`` at the end of each scan.

What is equal to before stays the same object, on which all that follows a scan depends: a comparison of two
Hosts is one of identities. What sysfs does not show is added here: verdicts on PCI errors, the lowest counts
of opens, what the host uses of its functions, VFs that their PF has left behind.
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
    """The Host of what was found, by table and key; None for what is not there any more.

    ``frame``: a Host with the plain facts; ``whole``: everything was read.
    """
    read: dict[str, Any] = {table: dict(values) for table, values in found.items()}
    recover(read["functions"], recoveries)
    keep_uses(read["functions"], previous.functions)
    pci.find_left_behind(read["functions"], {} if whole else previous.functions)
    carry(read["functions"], previous)
    read["usb"] = usb.identified(read["usb"], previous.usb, whole)
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
    """``old`` with what was read: all that there is (``whole``), or only some keys.

    ``order`` gives the sort key of the table, which is in order always; None: its keys themselves.
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
    """``old`` itself if nothing differs, else the new table with the objects of the old one where equal."""
    return old if old == new else {key: _keep(old, key, value) for key, value in new.items()}


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


def keep_uses(
    functions: dict[PciAddress, PciFunction | None], known: Mapping[PciAddress, PciFunction]
) -> None:
    """Complete the functions with what the host was seen to use of them, while they are as they were then."""
    for address, function in functions.items():
        before = known.get(address)
        if function is None or before is None or before.uses is None or not function.usable:
            continue
        if (function.driver, function.inode) == (before.driver, before.inode):
            functions[address] = function._replace(uses=before.uses)


def carry(functions: dict[PciAddress, PciFunction | None], previous: Host) -> None:
    """Complete functions with what was seen of their counts of opens before, as long as that holds."""
    for address, function in functions.items():
        if function is None:
            continue
        before = previous.functions.get(address)
        if function.driver is None:
            functions[address] = function._replace(
                idle=_left(before, function), lowest=_lowest(before, function)
            )
        elif function.vfio:
            functions[address] = _with_lowest(before, function)


def _with_lowest(before: PciFunction | None, function: PciFunction) -> PciFunction:
    """On a VFIO driver: with the lowest count of this binding, and who was seen at the same one."""
    count = function.enable
    if before is None or _binding(before) != _binding(function):
        return function
    idle = min((each for each in (before.idle, count) if each is not None), default=None)
    sight = before.sight if before.enable == count else None
    return function if (idle, sight) == (count, None) else function._replace(idle=idle, sight=sight)


def _left(before: PciFunction | None, function: PciFunction) -> int | None:
    """The count of a function that has no driver, if its last one was none of VFIO; nobody has it open."""
    if before is None or before.inode != function.inode or before.vfio:
        return None
    return before.idle if before.driver is None else function.enable


def _lowest(before: PciFunction | None, function: PciFunction) -> int | None:
    """The lowest count under the VFIO driver that a function had last, which has no driver any more."""
    if before is None or before.inode != function.inode:
        return None
    return before.idle if before.vfio else before.lowest


def _binding(function: PciFunction) -> tuple[object, ...]:
    """Differs when a driver has taken the function since, also if it is the same one again."""
    return function.inode, function.driver, function.vfio_inode


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
