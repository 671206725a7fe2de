# SPDX-License-Identifier: Apache-2.0
"""Scan: reads the node and builds a Host, as a whole or only what a Wake named.

Three steps, so that ``runner`` can spread the middle one over threads: ``plan`` lists what is to be read,
``read`` reads one item (the step that may hang, alone), ``assemble`` joins all into a Host that shares every
unchanged object with the previous one. What there is to read, and how, is in the table of Readers; reading
one item may show that others are touched (``follow``): the group that a function has left, the PF of a VF,
the parents of an mdev. Decides nothing, keeps everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import egm, groups, headers, mdevs, pci, usb_row
from nodeagent.kernel.scan.readers import Item, Reader, Reading
from nodeagent.model.host import Changes, Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.model.nodes import DevNode

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison


K = TypeVar("K")
V = TypeVar("V")

_NOTHING = object()
READERS: Mapping[str, Reader] = {
    reader.table: reader
    for reader in (pci.READER, mdevs.READER, groups.READER, mdevs.PARENTS_READER, usb_row.READER)
}
COMMON_NODES = ("/dev/vfio/vfio", "/dev/iommu")


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


def check_fallen(
    root: Root, functions: dict[str, PciFunction | None], recoveries: Mapping[PciAddress, Recovery]
) -> None:
    """Look again at functions that have fallen off the bus: nothing else tells when they answer.

    This wakes a sleeping device, which no pod can have.
    """
    for address, recovery in recoveries.items():
        function = functions.get(address)
        if function is not None and recovery is Recovery.FALLEN and function.answers is None:
            answers = headers.answers(root, f"{pci.DEVICES}/{address}")
            functions[address] = function._replace(answers=answers)


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
        return function._replace(idle=count)
    idle = min((each for each in (before.idle, count) if each is not None), default=None)
    return function._replace(idle=idle, sight=before.sight if before.enable == count else None)


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


class ReadList(NamedTuple):
    """What to read, and what the listing has shown already."""

    whole: bool
    items: tuple[Item, ...]
    frame: Host  # only its plain facts count: nodes, numa_nodes, iommu, vtd, vfio_loaded, egm, release


class Findings:
    """What was read so far, by table and key; None means: not there."""

    __slots__ = ("tables",)

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Any]] = {table: {} for table in READERS}

    def put(self, item: Item, value: object) -> None:
        """Note what an item read as."""
        self.tables[item.table][item.key] = value


class Scanner:
    """Reads the host below one root. Has no state: every call reads again."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def plan(self, keys: frozenset[str] | None, previous: Host, nodes: Sequence[str]) -> ReadList:
        """List what is to be read; ``keys`` None, or one that says nothing, means everything."""
        named = None if keys is None else resolve(keys, previous)
        if named is None:
            return ReadList(True, tuple(self._everything(nodes)), self._frame(previous, nodes))
        return ReadList(False, named, self._refreshed_frame(previous, nodes))

    def read(self, item: Item) -> Any:
        """Read one item; None if it is not there. The call that may hang."""
        return READERS[item.table].read(self._root, item.key)

    def join(
        self, plan: ReadList, findings: Findings, previous: Host, recoveries: Mapping[PciAddress, Recovery]
    ) -> Host:
        """The Host of what was read. May hang, but not for long."""
        check_fallen(self._root, findings.tables["functions"], recoveries)
        return assemble(plan, findings, previous, recoveries)

    def recheck(self, ids: Collection[str], host: Host) -> bool:
        """True if these functions, mdevs and nodes, and the groups, read as ``host`` has them. May hang."""
        if self._existing(()) != host.nodes.intersection(COMMON_NODES):
            return False
        paths = [path for path in ids if path.startswith("/")]
        known = {path: host.dev_nodes[path] for path in paths if path in host.dev_nodes}
        if _unnamed(self._nodes(paths)) != _unnamed(known):
            return False
        devices = [device_id for device_id in ids if not device_id.startswith("/")]
        if not all(self._as_known(device_id, host) for device_id in devices):
            return False
        numbers = {device.group for name in devices if (device := host.device(name)) is not None}
        return all(
            groups.group(self._root, number) == host.groups.get(number)
            for number in numbers
            if number is not None
        )

    def _as_known(self, device_id: str, host: Host) -> bool:
        for reader in READERS.values():
            known = getattr(host, reader.table).get(device_id) if reader.recheck is not None else None
            if known is not None and reader.recheck is not None:
                return reader.recheck(self._root, known)
        return False

    def _everything(self, nodes: Sequence[str]) -> Iterable[Item]:
        for reader in READERS.values():
            if reader.only is not None and reader.only not in nodes:
                continue
            yield from (Item(reader.table, key) for key in reader.list(self._root))

    def _frame(self, previous: Host, nodes: Sequence[str]) -> Host:
        dev_nodes = self._nodes(nodes)
        numa = self._root.names("/sys/devices/system/node")
        iommus = self._root.names("/sys/class/iommu")
        return Host(
            nodes=self._existing(dev_nodes),
            dev_nodes=_kept(previous.dev_nodes, dev_nodes),
            numa_nodes=frozenset(int(n[4:]) for n in numa if n.startswith("node") and n[4:].isdecimal()),
            iommu=bool(iommus),
            vtd=any(name.startswith("dmar") for name in iommus),
            vfio_loaded=self._vfio_loaded(),
            sriov_manage=self._root.exists(pci.SRIOV_MANAGE),
            egm=egm.read(self._root),
            release=self._root.text("/proc/sys/kernel/osrelease"),
        )

    def _refreshed_frame(self, previous: Host, nodes: Sequence[str]) -> Host:
        dev_nodes = self._nodes(nodes)
        return Host(
            nodes=self._existing(dev_nodes),
            dev_nodes=_kept(previous.dev_nodes, dev_nodes),
            numa_nodes=previous.numa_nodes,
            iommu=previous.iommu,
            vtd=previous.vtd,
            vfio_loaded=self._vfio_loaded(),
            sriov_manage=self._root.exists(pci.SRIOV_MANAGE),
            egm=egm.read(self._root),
            release=previous.release,
        )

    def _existing(self, dev_nodes: Iterable[str]) -> frozenset[str]:
        return frozenset((*dev_nodes, *(path for path in COMMON_NODES if self._root.exists(path))))

    def _nodes(self, wanted: Sequence[str]) -> Mapping[str, DevNode]:
        if not wanted:
            return {}
        from nodeagent.kernel.scan import devnodes  # here: few nodes have rules for such

        return devnodes.read(self._root, wanted)

    def _vfio_loaded(self) -> bool:
        return self._root.exists("/sys/bus/pci/drivers/vfio-pci")


def _unnamed(dev_nodes: Mapping[str, DevNode]) -> dict[str, DevNode]:
    """Without their lasting names, which are no part of what is given."""
    return {path: node._replace(alias="") for path, node in dev_nodes.items()}


def _kept(old: Mapping[str, DevNode], new: Mapping[str, DevNode]) -> Mapping[str, DevNode]:
    """The same table as before if nothing in it differs, else with what is as before."""
    return old if old == new else {path: _keep(old, path, node) for path, node in new.items()}


def resolve(keys: Iterable[str], previous: Host) -> tuple[Item, ...] | None:
    """What the keys of Wakes name, without doubles; None if one of them says nothing: then read everything.

    A key is a PCI address, an mdev UUID, a VFIO device name (``vfio3``), a device node (``/dev/vfio/13``), a
    USB device (``usb:1-1.2``, or its id) or an IOMMU group's directory. Asks the previous Host only and reads
    nothing.
    """
    items: dict[str, dict[Item, None]] = {table: {} for table in READERS}
    for key in sorted(keys):
        answers = ((reader.table, reader.named(key, previous)) for reader in READERS.values())
        table, names = next(((t, n) for t, n in answers if n is not None), ("", None))
        if names is not None:
            items[table] |= {Item(table, name): None for name in names}
        elif not key.startswith("/dev/"):  # nodes are listed each time
            return None
    return tuple(item for table in items.values() for item in table)


def follow(plan: ReadList, item: Item, value: object, previous: Host) -> Iterable[Item]:
    """Further items that one reading touches; only room where everything is read anyway."""
    return READERS[item.table].follow(Reading(item.key, value, previous, plan.whole))


def unanswered(item: Item, previous: Host) -> Any:
    """What stands for an item that did not answer."""
    return READERS[item.table].unanswered(item.key, previous)


def assemble(
    plan: ReadList, findings: Findings, previous: Host, recoveries: Mapping[PciAddress, Recovery]
) -> Host:
    """Join the findings to a Host; pure. What is equal to before is the same object as before."""
    read: dict[str, Any] = {
        table: {READERS[table].key(key): value for key, value in values.items()}
        for table, values in findings.tables.items()
    }
    recover(read["functions"], recoveries)
    keep_uses(read["functions"], previous.functions)
    pci.find_left_behind(read["functions"], {} if plan.whole else previous.functions)
    carry(read["functions"], previous)
    read["usb"] = usb_row.identified(read["usb"], previous, plan.whole)
    tables: dict[str, Any] = {
        table: merge(getattr(previous, table), values, plan.whole, READERS[table].order)
        for table, values in read.items()
    }
    return same_or_new(previous, replace(plan.frame, **tables), None if plan.whole else read)
