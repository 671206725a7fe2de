# SPDX-License-Identifier: Apache-2.0
"""In use: which mdevs and VFs something on this host has open, before a write that would wait for it.

What cannot be seen counts as in use. Nothing is opened to find out: an open group node alone makes a
starting virtual machine fail with EBUSY. Closing has no event, so the answer is good for a moment only.
Pods are not known here; who holds what for them is the kubelet's to say. May block: for a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from nodeagent.base import cachedstat
from nodeagent.kernel.root import Root, looked
from nodeagent.kernel.scan import mdevs, pci
from nodeagent.model.ids import PciAddress, mdev_uuid

_HOST_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO in include/linux/proc_ns.h
_NVIDIA = "nvidia"  # a driver that makes nothing of a VF but vGPUs

_EXITING = 0x4  # PF_EXITING in include/linux/sched.h
_STATE, _FLAGS, _THREADS = 0, 6, 17  # fields of proc_pid_stat(5), counted from the one after the name
_ZOMBIE = "Z"
_ANY = "replace"  # names are bytes, of which the kernel keeps 15: the last character may be half of one

Openers = Mapping[str, tuple[str, ...]]  # by id: processes, as "process 4711 (qemu-system-x86)"
Node = tuple[int, int, int]  # file type and device number, else file system and inode


class Seen(NamedTuple):
    """What one look at all processes has shown of mdevs and functions."""

    openers: Openers  # who has them open
    whole: bool  # every process could be seen
    closed: frozenset[str]  # these are closed for sure; what was asked by its group, as far as can be seen


def in_use(root: Root, ids: Iterable[str]) -> frozenset[str]:
    """Those of the mdevs (by UUID) and VFs (by address) that are open, or of which that is not known.

    What does not exist is not open.
    """
    asked: dict[str, tuple[Node, ...]] = {}
    taken: set[str] = set()
    counted: set[str] = set()
    for each in ids:
        verdict = _mdev(root, each) if mdev_uuid(each) else _function(root, PciAddress(each))
        if isinstance(verdict, tuple):
            asked[each] = verdict
        elif verdict is None:
            counted.add(each)
        elif verdict:
            taken.add(each)
    taken |= counted - look(root, counted).closed
    if asked:
        opened = _open_nodes(root)
        taken |= {each for each, nodes in asked.items() if opened is None or opened.intersection(nodes)}
    return frozenset(taken)


def look(root: Root, ids: Iterable[str], by_group: frozenset[str] = frozenset()) -> Seen:
    """Who has these mdevs (by UUID) and functions (by address) open, as far as that can be seen.

    Of those ``by_group`` only the node of the group counts, which one process opens: their own any may open.

    A tree of files in which nobody runs shows nothing. A process that is ending has no table of descriptors
    any more while the kernel still closes what was in it: while there is one, nothing is closed for sure.
    """
    searched, closed = _searched(root, ids, by_group)
    found, whole, ending = _processes_with(root, _by_node(searched))
    if not ending:
        closed |= (searched.keys() if whole else searched.keys() & by_group) - found.keys()
    return Seen(found, whole, frozenset(closed))


def _searched(
    root: Root, ids: Iterable[str], by_group: Collection[str]
) -> tuple[dict[str, tuple[Node, ...]], set[str]]:
    """The nodes through which these would be open; and those that are closed for sure."""
    searched: dict[str, tuple[Node, ...]] = {}
    closed: set[str] = set()
    for each in ids:
        own = each not in by_group
        nodes = _mdev(root, each) if mdev_uuid(each) else _nodes(root, _directory(each), own=own)
        if isinstance(nodes, tuple):
            searched[each] = nodes
        elif not nodes:
            closed.add(each)
    return searched, closed


def _by_node(searched: Mapping[str, Iterable[Node]]) -> dict[Node, list[str]]:
    asked: dict[Node, list[str]] = {}
    for each, nodes in searched.items():
        for node in nodes:
            asked.setdefault(node, []).append(each)
    return asked


def still(root: Root, openers: Openers) -> dict[str, tuple[str, ...]]:
    """Those of the ``openers`` who have it open yet, or may close it as they end. Quick."""
    found = {
        each: tuple(one for one in who if _has_still(root, each, one.split()[1]))
        for each, who in openers.items()
    }
    return {each: who for each, who in found.items() if who}


def _has_still(root: Root, device_id: str, process: str) -> bool:
    opened = _opened_by(root, process)
    nodes = _nodes(root, _directory(device_id))
    return opened is None or not opened.isdisjoint(nodes) or _is_ending(root, process)


def disks_open(root: Root, names: Iterable[str]) -> tuple[dict[str, str], bool]:
    """Which of these block devices are open, and by which process; False if not all processes are seen."""
    asked: dict[Node, list[str]] = {}
    for name in names:
        node = _node(root.path(f"/dev/{name}")) or _of_block(root, name)
        asked |= {} if node is None else {node: [name]}
    found, whole, _ = _processes_with(root, asked)
    return {each: who[-1] for each, who in found.items()}, whole


def _of_block(root: Root, name: str) -> Node | None:
    return _numbered(stat.S_IFBLK, root.text(f"/sys/class/block/{name}/dev") or "")


def characters_open(root: Root, numbers: Mapping[str, str]) -> Seen:
    """Who has these character devices open, by name with the number ``226:0``; which are closed for sure."""
    named = {name: _numbered(stat.S_IFCHR, number) for name, number in numbers.items()}
    asked = {node: [name] for name, node in named.items() if node is not None}
    found, whole, ending = _processes_with(root, asked)
    closed = {name for names in asked.values() for name in names} if whole and not ending else set[str]()
    return Seen(found, whole, frozenset(closed - found.keys()))


def _numbered(kind: int, number: str) -> Node | None:
    """The node of a device ``259:1``, which a container may have without showing it below /dev."""
    major, _, minor = number.partition(":")
    if not (major.isdecimal() and minor.isdecimal()):
        return None
    return kind, os.makedev(int(major), int(minor)), 0


def _processes_with(
    root: Root, asked: Mapping[Node, Collection[str]]
) -> tuple[dict[str, tuple[str, ...]], bool, bool]:
    """The names of the nodes that are open, with all who have; whether all processes let that be seen.

    And whether one of them is ending.
    """
    result: dict[str, tuple[str, ...]] = {}
    processes = _processes(root) if asked else []
    whole, ending = bool(processes) and sees_all_processes(root), False
    for process in processes:
        opened = _opened_by(root, process)
        whole = whole and opened is not None
        torn = not opened or None in opened  # it may have gone while it was looked at
        ending = ending or (torn and _is_ending(root, process))
        _note(root, process, (each for node in asked.keys() & (opened or ()) for each in asked[node]), result)
    return result, whole, ending


def _note(root: Root, process: str, had: Iterable[str], found: dict[str, tuple[str, ...]]) -> None:
    """The process has these, too."""
    if ids := frozenset(had):
        opener = _called(root, process)
        found |= {each: (*found.get(each, ()), opener) for each in ids}


def _processes(root: Root) -> list[str]:
    return [name for name in root.names("/proc") if name.isdecimal()]


def _called(root: Root, process: str) -> str:
    name = root.text(f"/proc/{process}/comm", errors=_ANY) or "?"
    return f"process {process} ({name})"


def _is_ending(root: Root, process: str) -> bool:
    """True if the process, or a thread of it, may still close files that its table does not show any more.

    It is a zombie when it has closed its own, and alone when all of its threads have (``do_exit`` in
    kernel/exit.c: ``exit_files``, ``exit_task_work``, ``exit_notify``).
    """
    fields = (root.text(f"/proc/{process}/stat", errors=_ANY) or "").rpartition(")")[2].split()
    if len(fields) <= _THREADS or not fields[_FLAGS].isdecimal():
        return False
    ending = bool(int(fields[_FLAGS]) & _EXITING)
    return ending and (fields[_STATE], fields[_THREADS]) != (_ZOMBIE, "1")


def sees_all_processes(root: Root) -> bool:
    """False in a namespace of processes that is not the host's, and where those of others are hidden.

    With ``hidepid=invisible`` (proc(5)) who may not trace process 1, and has not the group of that option,
    does not see it, nor most others.
    """
    whole = root.target("/proc/self/ns/pid") == _HOST_PIDS and root.exists("/proc/1")
    return whole or not root.is_host


def _mdev(root: Root, uuid: str) -> bool | tuple[Node, ...]:
    """False: not open; True: taken for open; else the nodes through which it would be.

    The use count of the parent driver's module is the number of its open instances (Linux 6.1 and 6.12).
    """
    path = f"{mdevs.DEVICES}/{uuid}"
    if not root.exists(path):
        return False
    module = root.link(f"{path}/driver/module")
    if module is not None and _use_count(root, module) == 0:
        return False
    alive = root.exists(f"{path}/driver")  # what no driver has, and no node leads to, nobody can open
    return _nodes(root, path) or alive


def _function(root: Root, address: PciAddress) -> bool | tuple[Node, ...] | None:
    """None: by its count it is open, unless a driver before has left that.

    Without a driver it is open only while its group has a node: an unbind waits for the holder, who may have
    a node of the device's own that is gone already (``vfio_unregister_group_dev`` since Linux 6.6).
    A VF on a driver of the host may be in use in ways that are not seen here: a network interface, a disk.

    Not so on NVIDIA's: there it is for vGPUs alone, and used by nobody while it is none and has no mdev.
    A VF with a vendor's vGPU type is open through its group's node; without a type it cannot be. It has
    a VFIO device, but its driver is one of the host, where ``enable`` says nothing (usually 1).
    """
    function = pci.function(root, address)
    if function is None:
        return False
    if function.unreadable is not None:
        return True
    if function.driver is None:
        return function.enable is None or bool(function.enable and _nodes(root, f"{pci.DEVICES}/{address}"))
    if function.vfio and not function.vgpu:
        return function.enable is None or (None if function.enable else False)
    if not function.vgpu:
        return function.physfn is None or function.driver != _NVIDIA or _has_mdevs(root, address)
    return function.vgpu_type is not None and (_nodes(root, f"{pci.DEVICES}/{address}") or True)


def _has_mdevs(root: Root, address: str) -> bool:
    return bool(mdevs.instances_on(root, (address,)))


def _use_count(root: Root, module: str) -> int | None:
    """The third column of the module's line in /proc/modules."""
    lines = (line.split() for line in (root.text("/proc/modules") or "").splitlines())
    return next((int(words[2]) for words in lines if len(words) > 2 and words[0] == module), None)


def _directory(device_id: str) -> str:
    return f"{mdevs.DEVICES if mdev_uuid(device_id) else pci.DEVICES}/{device_id}"


def _nodes(root: Root, device: str, *, own: bool = True) -> tuple[Node, ...]:
    """The nodes of a device that exist: its group's, and its ``own``."""
    nodes = (_node(root.path(path)) for path in _paths(root, device, own=own))
    return tuple(node for node in nodes if node is not None)


def _paths(root: Root, device: str, *, own: bool = True) -> list[str]:
    """Where on the host these nodes would be."""
    group = root.link(f"{device}/iommu_group")
    paths = [] if group is None else [f"{pci.VFIO}/{group}", f"{pci.VFIO}/noiommu-{group}"]
    if own:
        paths += [f"{pci.VFIO_DEVICES}/{name}" for name in root.names(f"{device}/vfio-dev")]
    return paths


def _node(path: str) -> Node | None:
    """By number, not by name: a holder in a container has the node under a path of its own."""
    try:
        status = cachedstat.status(path)
    except OSError:
        return None
    if status.rdev:
        return stat.S_IFMT(status.mode), status.rdev, 0  # block devices have numbers of their own
    return 0, status.device, status.inode


def _open_nodes(root: Root) -> frozenset[Node | None] | None:
    """All nodes that any process has open; None if not every process of the host can be seen."""
    if not sees_all_processes(root):
        return None
    opened: set[Node | None] = set()
    for process in _processes(root):
        nodes = _opened_by(root, process)
        if nodes is None:
            return None
        opened |= nodes
    return frozenset(opened)


def _opened_by(root: Root, process: str) -> set[Node | None] | None:
    """What one process has open; None if that may not be seen. One that has ended has nothing open.

    With None among it something was in the table that could not be looked at: it may have gone meanwhile.
    """
    paths = _table(root, process)
    if paths is None:
        return None
    nodes = {path: _node(path) for path in paths}
    if any(node is None and _hidden(path) for path, node in nodes.items()):
        return None
    return set(nodes.values())


def _table(root: Root, process: str) -> list[str] | None:
    """The descriptors of a process, as paths; None if these may not be seen.

    The first thread shows nothing once it has ended. The others have the same table for as long as one of
    them sleeps in the kernel, or runs.
    """
    paths = _descriptors(root.path(f"/proc/{process}/fd"))
    if paths is None or paths:
        return paths
    threads = f"/proc/{process}/task"
    for thread in root.names(threads):
        further = _descriptors(root.path(f"{threads}/{thread}/fd")) if thread != process else []
        if further is None:
            return None
        paths += further
    return paths


def _descriptors(directory: str) -> list[str] | None:
    try:
        return [f"{directory}/{name}" for name in os.listdir(directory)]
    except PermissionError:
        return None
    except OSError as error:
        looked(error)
        return []


def _hidden(path: str) -> bool:
    """True if the kernel does not say what an open file is: to list them takes less than CAP_SYS_PTRACE.

    A file that it names and that cannot be looked at is somebody's FUSE file system, and no device.
    """
    try:
        os.readlink(path)  # noqa: PTH115 - as above
    except PermissionError:
        return True
    except OSError:
        return False
    return False
