# SPDX-License-Identifier: Apache-2.0
"""Open files: which processes have mdevs, functions and other devices open, by one look at /proc.

Open files below a ``/dev`` are compared by device number, since a container may have a node under a path of
its own. Nothing is opened to find out: an open group node alone makes a starting VM fail with EBUSY. Closing
has no event, so the answer is good for a moment only; a process that is ending shows no open file while the
kernel closes what it had. Before a change of the host (``find_in_use``) unknown counts as open. Pods are not
known here. May block: for a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from nodeagent.base import threads
from nodeagent.base.process import has_host_pids
from nodeagent.kernel.root import Root, raise_if_out_of_resources
from nodeagent.kernel.scan import mdevs, pci
from nodeagent.model.host import Host, PciFunction, Sight
from nodeagent.model.ids import PciAddress, mdev_uuid

_NVIDIA = "nvidia"  # a driver that makes nothing of a VF but vGPUs
_REPLACE = "replace"  # names are bytes, of which the kernel keeps 15: the last character may be half of one

Node = tuple[int, int, int]  # file type and device number, else file system and inode
Nodes = Mapping[str, Collection[Node]]  # by id: the nodes through which it would be open


class OpenFiles(NamedTuple):
    """The result of one look at all processes."""

    openers: Mapping[str, str]  # by id: a process that has it open, as "process 4711 (qemu-system-x86)"
    whole: bool  # every process could be seen
    processes: int  # how many there are; a simulated host may have none, which proves nothing of a count

    @property
    def decisive(self) -> bool:
        """True if a device that no process has open is closed, even if its open count is not zero."""
        return self.whole and self.processes > 0


def find_in_use(root: Root, ids: Iterable[str]) -> frozenset[str]:
    """Those of the mdevs (by UUID) and VFs (by address) that are open, or of which that is not known.

    An id that does not exist is not open.
    """
    searched: dict[str, tuple[Node, ...]] = {}
    counted: set[str] = set()
    used: set[str] = set()
    for each in ids:
        verdict = _mdev(root, each) if mdev_uuid(each) else _function(root, PciAddress(each))
        if verdict is None:
            counted.add(each)
            searched[each] = _nodes(root, f"{pci.DEVICES}/{each}")
        elif isinstance(verdict, tuple):
            searched[each] = verdict
        elif verdict:
            used.add(each)
    files = find_open(root, searched)
    if not files.decisive:
        used |= searched.keys() if not files.whole else counted
    return frozenset(used | files.openers.keys())


def find_openers(root: Root, ids: Iterable[str], by_group: Collection[str] = ()) -> OpenFiles:
    """The processes that have these mdevs (by UUID) and functions (by address) open.

    Of those ``by_group`` only the node of the group counts, which one process opens: their own any may open.
    """
    searched: dict[str, tuple[Node, ...]] = {}
    for each in ids:
        own = each not in by_group
        nodes = _mdev(root, each) if mdev_uuid(each) else _nodes(root, f"{pci.DEVICES}/{each}", own=own)
        searched[each] = nodes if isinstance(nodes, tuple) else ()
    return find_open(root, searched)


def find_open(root: Root, searched: Nodes) -> OpenFiles:
    """The processes that have one of these nodes open; in a tree of files without processes none is seen."""
    ids_of: dict[Node, list[str]] = {}
    for each, nodes in searched.items():
        for node in nodes:
            ids_of.setdefault(node, []).append(each)
    openers: dict[str, str] = {}
    processes = [name for name in root.names("/proc") if name.isdecimal()] if ids_of else []
    whole = not ids_of or sees_all_processes(root)
    for process in processes:
        opened = _opened_by(root, process)
        if opened is None:
            whole = False
        elif found := ids_of.keys() & opened:
            name = root.text(f"/proc/{process}/comm", errors=_REPLACE) or "?"
            openers |= {each: f"process {process} ({name})" for node in found for each in ids_of[node]}
    return OpenFiles(openers, whole, len(processes))


def character_device(number: str) -> tuple[Node, ...]:
    """The node of a character device ``226:0``, which a container may have without showing it below /dev."""
    return _numbered(stat.S_IFCHR, number)


def block_device(root: Root, name: str) -> tuple[Node, ...]:
    """The node of a block device ``sda1``."""
    node = _node(root.path(f"/dev/{name}"))
    return (node,) if node else _numbered(stat.S_IFBLK, root.text(f"/sys/class/block/{name}/dev") or "")


def sees_all_processes(root: Root) -> bool:
    """False in a namespace of processes that is not the host's, and where those of others are hidden.

    With ``hidepid=invisible`` (proc(5)) a process that may not trace process 1, and has not the group of that
    option, does not see it, nor most others.
    """
    return not root.is_host or (has_host_pids() and root.exists("/proc/1"))


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
    alive = root.exists(f"{path}/driver")  # without a driver and a node it cannot be opened
    return _nodes(root, path) or alive


def _function(root: Root, address: PciAddress) -> bool | tuple[Node, ...] | None:
    """The same of a function; None: by its count it is open, unless a driver before has left that.

    Without a driver it is open only while its group has a node: an unbind waits for the holder, who may have
    a node of the device's own that is gone already (``vfio_unregister_group_dev`` since Linux 6.6).
    A VF on a driver of the host may be in use in ways that are not seen here: a network interface, a disk.

    Not so on NVIDIA's: there it is for vGPUs alone, and not in use while it is none and has no mdev.
    A VF with a vendor's vGPU type is open through its group's node; without a type it cannot be. It has
    a VFIO device, but its driver is one of the host, where ``enable`` says nothing (usually 1).
    """
    function, device = pci.function(root, address), f"{pci.DEVICES}/{address}"
    if function is None:
        return False
    if function.unreadable is not None:
        return True
    if function.driver is None:
        return function.enable is None or bool(function.enable and _nodes(root, device))
    if function.vfio and not function.vgpu:
        return function.enable is None or (None if function.enable else False)
    if not function.vgpu:
        return function.physfn is None or function.driver != _NVIDIA or _has_mdevs(root, address)
    return function.vgpu_type is not None and (_nodes(root, device) or True)


def _has_mdevs(root: Root, address: str) -> bool:
    return bool(mdevs.instances_on(root, (address,)))


def _use_count(root: Root, module: str) -> int | None:
    """The third column of the module's line in /proc/modules."""
    lines = (line.split() for line in (root.text("/proc/modules") or "").splitlines())
    return next((int(words[2]) for words in lines if len(words) > 2 and words[0] == module), None)


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
        status = os.stat(path)  # noqa: PTH116 - text, not a Path
    except OSError:
        return None
    if status.st_rdev:
        return stat.S_IFMT(status.st_mode), status.st_rdev, 0  # block devices have numbers of their own
    return 0, status.st_dev, status.st_ino


def _numbered(kind: int, number: str) -> tuple[Node, ...]:
    major, _, minor = number.partition(":")
    if not (major.isdecimal() and minor.isdecimal()):
        return ()
    return ((kind, os.makedev(int(major), int(minor)), 0),)


def _opened_by(root: Root, process: str) -> set[Node | None] | None:
    """The device nodes that one process has open; None if that may not be seen. One that has ended has none.

    To list open files takes less than to see their names, which takes CAP_SYS_PTRACE. Only files with
    ``/dev/`` in their path are looked at: stat(2) of another may hang (FUSE, NFS).
    """
    directory = root.path(f"/proc/{process}/fd")
    try:
        paths = [f"{directory}/{name}" for name in os.listdir(directory)]
        return {_node(path) for path in paths if "/dev/" in _read_target(path)}
    except PermissionError:
        return None
    except OSError as error:
        raise_if_out_of_resources(error)
        return set()


def _read_target(path: str) -> str:
    """The name of an open file; "" if it was closed meanwhile. :raises PermissionError: if that is hidden."""
    try:
        return os.readlink(path)  # noqa: PTH115 - thousands of them, and a Path costs five times more
    except PermissionError:
        raise
    except OSError:
        return ""


async def add_openers(
    host: Host, read: Collection[str], root: Root, looks: threads.OneByOne, limit: float
) -> Host:
    """The Host with the openers of functions, of which those in ``read`` were read just now; maybe the same.

    The count alone proves nothing: i915 and radeon leave it above zero when they are unbound, for they never
    call pci_disable_device. One look at all processes is good for as long as the count stays what it is;
    where the count may be one that was left, it is repeated whenever the function is read. ``limit``: seconds
    for the look; one that takes longer tells nothing.
    """
    wanted = [
        each
        for each in host.functions.values()
        if _is_unknown(each) or (each.address in read and _is_doubtful(each))
    ]
    if not wanted:
        return host
    seen = await looks.call(limit, find_openers, root, [each.address for each in wanted])
    changed = {}
    for each in wanted:
        sight = each.sight or Sight()
        if seen is not None:
            sight = Sight(seen.openers.get(each.address), seen.decisive)
        if sight != each.sight:
            changed[each.address] = each._replace(sight=sight)
    if not changed:
        return host
    return replace(host, functions={**host.functions, **changed}, changes=None)


def _is_unknown(function: PciFunction) -> bool:
    return function.vfio and function.driver is not None and bool(function.enable) and function.sight is None


def _is_doubtful(function: PciFunction) -> bool:
    """True if a process had it open, and the count does not tell whether that is over."""
    seen = function.sight is not None and function.sight.process is not None
    return seen and function.enable == function.idle
