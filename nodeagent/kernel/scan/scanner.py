# SPDX-License-Identifier: Apache-2.0
"""Scan: reads the node and builds a Host, as a whole or only what a Wake named.

Three steps, so that ``look`` can spread the middle one over threads: ``plan`` lists what is to be read,
``read`` reads one item (the step that may hang, alone), ``assemble`` joins all into a Host that shares every
unchanged object with the previous one. Reading an item may show that others are touched (``follow``): the
group that a function has left, the PF of a VF, the parents of an mdev. Decides nothing, keeps everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import mdevs, merge, pci, wake_keys
from nodeagent.model.host import Group, Host, HostDevice, Mdev, MdevType, PciFunction, Recovery
from nodeagent.model.ids import GroupNumber, PciAddress, mdev_uuid, pci_address, pci_order

COMMON_NODES = ("/dev/vfio/vfio", "/dev/iommu")

Kind = Literal["function", "group", "mdev", "parent"]
Found = PciFunction | Group | Mdev | tuple[MdevType, ...] | None


class Item(NamedTuple):
    """One thing to read: its kind and its address, group number, UUID or parent's name."""

    kind: Kind
    key: str


@dataclass(frozen=True, slots=True)
class ReadList:
    """What to read, and what the listing has shown already."""

    whole: bool
    items: tuple[Item, ...]
    frame: Host  # only its plain facts count: nodes, numa_nodes, iommu, vfio_loaded, release


@dataclass(slots=True)
class Findings:
    """What was read so far; None means: not there."""

    functions: dict[str, PciFunction | None] = field(default_factory=dict)
    groups: dict[str, Group | None] = field(default_factory=dict)
    mdevs: dict[str, Mdev | None] = field(default_factory=dict)
    parents: dict[str, tuple[MdevType, ...] | None] = field(default_factory=dict)

    def put(self, item: Item, found: Found) -> None:
        """Note what was found for an item."""
        table: dict[str, Found] = getattr(self, item.kind + "s")
        table[item.key] = found


class Scanner:
    """Reads the host below one root. Has no state: every call reads again."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def plan(self, keys: frozenset[str] | None, previous: Host, nodes: Sequence[str] = ()) -> ReadList:
        """List what is to be read; ``keys`` None, or one that says nothing, means everything."""
        named = None if keys is None else wake_keys.resolve(keys, previous)
        if named is None:
            return ReadList(True, tuple(self._everything()), self._frame(nodes))
        items = [Item("function", key) for key in named.functions]
        items += [Item("mdev", key) for key in named.mdevs]
        items += [Item("group", key) for key in named.groups]
        return ReadList(False, tuple(items), self._refreshed_frame(previous, nodes))

    def read(self, item: Item) -> Found:
        """Read one item; None if it is not there. The call that may hang."""
        if item.kind == "function":
            return pci.function(self._root, PciAddress(item.key))
        if item.kind == "group":
            return pci.group(self._root, GroupNumber(int(item.key)))
        if item.kind == "mdev":
            return mdevs.instance(self._root, item.key)
        return mdevs.types(self._root, item.key)

    def unchanged(self, ids: Collection[str], host: Host) -> bool:
        """True if these functions, mdevs and nodes, and the groups, read as ``host`` has them. May hang."""
        groups: set[GroupNumber] = set()
        nodes = [each for each in ids if each.startswith("/")]
        if self._existing(nodes) != host.nodes.intersection((*COMMON_NODES, *nodes)):
            return False
        for known in (host.device(each) for each in ids if each not in nodes):
            if known is None or not self._as_known(known):
                return False
            if known.group is not None:
                groups.add(known.group)
        return all(pci.group(self._root, number) == host.groups.get(number) for number in groups)

    def _as_known(self, known: HostDevice) -> bool:
        if isinstance(known, Mdev):
            return mdevs.instance(self._root, known.uuid) == known
        return pci.as_known(self._root, known)

    def _everything(self) -> Iterable[Item]:
        names = self._root.names
        addresses = [name for name in names(pci.DEVICES) if pci_address(name) == name]
        groups = [name for name in names(pci.GROUPS) if name.isdecimal()]
        yield from (Item("function", name) for name in sorted(addresses, key=pci_order))
        yield from (Item("group", name) for name in sorted(groups, key=int))
        yield from (Item("mdev", name) for name in names(mdevs.DEVICES) if mdev_uuid(name) == name)
        yield from (Item("parent", name) for name in names(mdevs.PARENTS))

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


def follow(plan: ReadList, item: Item, found: Found, previous: Host) -> Iterable[Item]:
    """Further items that one reading touches; only room where everything is read anyway."""
    if item.kind == "group":
        yield from _follow_group(item.key, found, previous)
        return
    if plan.whole or item.kind == "parent":
        return
    if item.kind == "function":
        yield from _follow_function(item.key, found, previous)
        return
    for mdev in (previous.device(item.key), found):
        if isinstance(mdev, Mdev):
            yield from _group_item(mdev.group)
            if mdev.parent is not None:
                yield Item("parent", mdev.parent)


def _follow_function(key: str, found: Found, previous: Host) -> Iterable[Item]:
    """The groups before and after, the PF, the VFs that came or went, and the types it may offer."""
    yield Item("parent", key)
    vfs: set[PciAddress] = set()
    for function in (previous.functions.get(PciAddress(key)), found):
        if isinstance(function, PciFunction):
            yield from _group_item(function.group)
            vfs ^= set(function.vfs)
            if function.physfn is not None:
                yield Item("function", function.physfn)
    yield from (Item("function", address) for address in sorted(vfs))


def _follow_group(key: str, found: Found, previous: Host) -> Iterable[Item]:
    """All parents, where an mdev has left its group: room has no event, and its parent is known no more.

    A removal that waits for a holder takes the mdev off its bus first, and gives its room back at the end.
    """
    before = previous.groups.get(GroupNumber(int(key)))
    members = found.members if isinstance(found, Group) else ()
    if before is not None and any(mdev_uuid(each) for each in before.members if each not in members):
        yield from (Item("parent", name) for name in previous.mdev_parents)


def _group_item(number: GroupNumber | None) -> tuple[Item, ...]:
    return () if number is None else (Item("group", str(number)),)


def assemble(
    plan: ReadList, findings: Findings, previous: Host, recoveries: Mapping[PciAddress, Recovery]
) -> Host:
    """Join the findings to a Host; pure. What is equal to before is the same object as before."""
    functions = merge.recovered(findings.functions, recoveries)
    groups = {GroupNumber(int(key)): found for key, found in findings.groups.items()}
    frame, whole = plan.frame, plan.whole
    return merge.same_or_new(
        previous,
        Host(
            functions=merge.merge(previous.functions, functions, whole, pci_order),
            groups=merge.merge(previous.groups, groups, whole, int),
            mdevs=merge.merge(previous.mdevs, findings.mdevs, whole, str),
            mdev_parents=merge.merge(previous.mdev_parents, findings.parents, whole, str),
            nodes=frame.nodes,
            numa_nodes=frame.numa_nodes,
            iommu=frame.iommu,
            vfio_loaded=frame.vfio_loaded,
            release=frame.release,
        ),
        None if whole else (functions.keys(), groups.keys(), findings.mdevs.keys()),
    )
