# SPDX-License-Identifier: Apache-2.0
"""Scan: reads the node and builds a Host, as a whole or only what a Wake named.

Three steps, so that ``runner`` can spread the middle one over threads: ``plan`` lists what is to be read,
``read`` reads one item (the step that may hang, alone), ``assemble`` joins all into a Host that shares every
unchanged object with the previous one. What there is to read, and how, is in the table of Readers; reading
one item may show that others are touched (``follow``): the group that a function has left, the PF of a VF,
the parents of an mdev. Decides nothing, keeps everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import groups, mdevs, merge, pci
from nodeagent.kernel.scan.readers import Item, Reader, Reading
from nodeagent.model.host import Host, Recovery
from nodeagent.model.ids import PciAddress

READERS: Mapping[str, Reader] = {
    reader.table: reader for reader in (pci.READER, mdevs.READER, groups.READER, mdevs.PARENTS_READER)
}
COMMON_NODES = ("/dev/vfio/vfio", "/dev/iommu")


class ReadList(NamedTuple):
    """What to read, and what the listing has shown already."""

    whole: bool
    items: tuple[Item, ...]
    frame: Host  # only its plain facts count: nodes, numa_nodes, iommu, vfio_loaded, release


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
            return ReadList(True, tuple(self._everything()), self._frame(nodes))
        return ReadList(False, named, self._refreshed_frame(previous, nodes))

    def read(self, item: Item) -> Any:
        """Read one item; None if it is not there. The call that may hang."""
        return READERS[item.table].read(self._root, item.key)

    def recheck(self, ids: Collection[str], host: Host) -> bool:
        """True if these functions, mdevs and nodes, and the groups, read as ``host`` has them. May hang."""
        nodes = [path for path in ids if path.startswith("/")]
        if self._existing(nodes) != host.nodes.intersection((*COMMON_NODES, *nodes)):
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

    def _everything(self) -> Iterable[Item]:
        for reader in READERS.values():
            yield from (Item(reader.table, key) for key in reader.list(self._root))

    def _frame(self, nodes: Sequence[str]) -> Host:
        numa = self._root.names("/sys/devices/system/node")
        return Host(
            nodes=self._existing(nodes),
            numa_nodes=frozenset(int(n[4:]) for n in numa if n.startswith("node") and n[4:].isdecimal()),
            iommu=bool(self._root.names("/sys/class/iommu")),
            vfio_loaded=self._vfio_loaded(),
            release=self._root.text("/proc/sys/kernel/osrelease"),
        )

    def _refreshed_frame(self, previous: Host, nodes: Sequence[str]) -> Host:
        return Host(
            nodes=self._existing(nodes),
            numa_nodes=previous.numa_nodes,
            iommu=previous.iommu,
            vfio_loaded=self._vfio_loaded(),
            release=previous.release,
        )

    def _existing(self, nodes: Sequence[str]) -> frozenset[str]:
        return frozenset(path for path in (*COMMON_NODES, *nodes) if self._root.exists(path))

    def _vfio_loaded(self) -> bool:
        return self._root.exists("/sys/bus/pci/drivers/vfio-pci")


def resolve(keys: Iterable[str], previous: Host) -> tuple[Item, ...] | None:
    """What the keys of Wakes name, without doubles; None if one of them says nothing: then read everything.

    A key is a PCI address, an mdev UUID, a VFIO device name (``vfio3``), a device node (``/dev/vfio/13``)
    or an IOMMU group's directory. Asks the previous Host only and reads nothing.
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
    read = {
        table: {READERS[table].key(key): value for key, value in values.items()}
        for table, values in findings.tables.items()
    }
    merge.recover(read["functions"], recoveries)
    tables: dict[str, Any] = {
        table: merge.merge(getattr(previous, table), values, plan.whole, READERS[table].order)
        for table, values in read.items()
    }
    return merge.same_or_new(previous, replace(plan.frame, **tables), None if plan.whole else read)
