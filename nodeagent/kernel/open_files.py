# SPDX-License-Identifier: Apache-2.0
"""Finds the processes that have mdevs, functions and other devices open, by scanning /proc.

Open files below a ``/dev`` are compared by device number, since a container may have a device node under
another path. The scan never opens a device: an open group node alone makes a starting VM fail with EBUSY.
Closing a device sends no event, so a result is valid only for a moment; a process that is ending lists no
open files while the kernel still closes its devices. Before a change of the host (``find_in_use``), a device
in an unknown state counts as open. This module has no information about pods. May block: call it in a thread.
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

_NVIDIA = "nvidia"  # this driver makes only vGPUs of a VF
_REPLACE = "replace"  # names are bytes, of which the kernel keeps 15: the last character may be cut

Node = tuple[int, int, int]  # file type and device number, else file system and inode
Nodes = Mapping[str, Collection[Node]]  # by id: the nodes through which a process could open the device


class OpenFiles(NamedTuple):
    """The result of one scan of all processes."""

    # by id: a process that has the device open, such as "process 4711 (qemu-system-x86)"
    openers: Mapping[str, str]
    whole: bool  # True if every process could be inspected
    processes: int  # number of processes; a simulated host may have none, which proves nothing about a count

    @property
    def decisive(self) -> bool:
        """Return True if all processes could be inspected, so a device that none has open is closed whatever
        its count.
        """
        return self.whole and self.processes > 0


def find_in_use(root: Root, ids: Iterable[str]) -> frozenset[str]:
    """Return the mdevs (by UUID) and VFs (by address) that are open or may be open.

    A device that does not exist counts as not open.
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
    """Return the processes that have these mdevs (by UUID) and functions (by address) open.

    For functions in ``by_group``, only the device node of the IOMMU group is searched, because only one
    process at a time can open it.
    """
    searched: dict[str, tuple[Node, ...]] = {}
    for each in ids:
        own = each not in by_group
        nodes = _mdev(root, each) if mdev_uuid(each) else _nodes(root, f"{pci.DEVICES}/{each}", own=own)
        searched[each] = nodes if isinstance(nodes, tuple) else ()
    return find_open(root, searched)


def find_open(root: Root, searched: Nodes) -> OpenFiles:
    """Return the processes that have one of these device nodes open; none in a simulated host without
    processes.
    """
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
    """Return the node of a character device ``226:0``, even if a container does not show it below /dev."""
    return _numbered(stat.S_IFCHR, number)


def block_device(root: Root, name: str) -> tuple[Node, ...]:
    """Return the node of a block device such as ``sda1``."""
    node = _node(root.path(f"/dev/{name}"))
    return (node,) if node else _numbered(stat.S_IFBLK, root.text(f"/sys/class/block/{name}/dev") or "")


def sees_all_processes(root: Root) -> bool:
    """Return True if this process sees all processes: the PID namespace is the host's, and no process is
    hidden.

    With ``hidepid=invisible`` (proc(5)), a process without permission to trace process 1 and outside the
    group of that option does not see process 1 and most others.
    """
    return not root.is_host or (has_host_pids() and root.exists("/proc/1"))


def _mdev(root: Root, uuid: str) -> bool | tuple[Node, ...]:
    """Return False if the mdev is closed, True if it counts as open, else the nodes through which it could
    be open.

    The use count of the parent driver's module is the number of open instances (Linux 6.1 and 6.12).
    """
    path = f"{mdevs.DEVICES}/{uuid}"
    if not root.exists(path):
        return False
    module = root.link(f"{path}/driver/module")
    if module is not None and _use_count(root, module) == 0:
        return False
    alive = root.exists(f"{path}/driver")  # without a driver and a node, it cannot be opened
    return _nodes(root, path) or alive


def _function(root: Root, address: PciAddress) -> bool | tuple[Node, ...] | None:
    """Return False if the function is closed, True if it counts as open, else the device nodes through which
    it could be open; None if its open count says open, which a previous driver may have left.

    A function without a driver is open only while its IOMMU group has a device node: an unbind waits for the
    process, whose own device node may already be removed (``vfio_unregister_group_dev`` since Linux 6.6). A
    VF on a host driver may be in use as a network interface or a disk, which this module does not detect.

    VFs on NVIDIA's host driver are for vGPUs only, so such a VF without a vGPU type and mdev is not in use. A
    VF with a vendor's vGPU type is opened through the device node of its IOMMU group. A VF with a vGPU type
    has a VFIO device, but is bound to a host driver: then the file ``enable`` (usually 1) does not show
    whether the VF is open.
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
    """Return the third column of the module's line in /proc/modules."""
    lines = (line.split() for line in (root.text("/proc/modules") or "").splitlines())
    return next((int(words[2]) for words in lines if len(words) > 2 and words[0] == module), None)


def _nodes(root: Root, device: str, *, own: bool = True) -> tuple[Node, ...]:
    """Return the existing device nodes of a device: the node of its IOMMU group, and with ``own`` also its
    VFIO device.
    """
    nodes = (_node(root.path(path)) for path in _paths(root, device, own=own))
    return tuple(node for node in nodes if node is not None)


def _paths(root: Root, device: str, *, own: bool = True) -> list[str]:
    """Return the host paths of the device nodes of a device and its IOMMU group, existing or not."""
    group = root.link(f"{device}/iommu_group")
    paths = [] if group is None else [f"{pci.VFIO}/{group}", f"{pci.VFIO}/noiommu-{group}"]
    if own:
        paths += [f"{pci.VFIO_DEVICES}/{name}" for name in root.names(f"{device}/vfio-dev")]
    return paths


def _node(path: str) -> Node | None:
    """Return the number of a device node: a process in a container may have the node under another path."""
    try:
        status = os.stat(path)  # noqa: PTH116 - text, not a Path
    except OSError:
        return None
    if status.st_rdev:
        return stat.S_IFMT(status.st_mode), status.st_rdev, 0  # block device numbers are a separate range
    return 0, status.st_dev, status.st_ino


def _numbered(kind: int, number: str) -> tuple[Node, ...]:
    major, _, minor = number.partition(":")
    if not (major.isdecimal() and minor.isdecimal()):
        return ()
    return ((kind, os.makedev(int(major), int(minor)), 0),)


def _opened_by(root: Root, process: str) -> set[Node | None] | None:
    """Return the device nodes that one process has open; None without permission; an ended process has none.

    Listing open files needs fewer permissions than reading their names, which needs CAP_SYS_PTRACE. Only
    files with ``/dev/`` in their path are inspected, because stat(2) of other files may hang (FUSE, NFS).
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
    """Return the name of an open file; "" if it was closed. :raises PermissionError: if it is hidden."""
    try:
        return os.readlink(path)  # noqa: PTH115 - thousands of them, and a Path costs five times more
    except PermissionError:
        raise
    except OSError:
        return ""


async def add_openers(
    host: Host, read: Collection[str], root: Root, looks: threads.OneByOne, limit: float
) -> Host:
    """Return the Host with the processes that have functions open; functions in ``read`` were just scanned.

    The open count alone proves nothing: i915 and radeon leave it above zero when they are unbound, because
    they never call pci_disable_device. The result of a process scan is valid while the count is unchanged.
    If the count may be left by a previous driver, the scan is repeated whenever the function is read.
    ``limit`` is the timeout of the scan in seconds, after which the result is unknown.
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
    """Return True if a process had the function open, and its count does not show whether it is closed."""
    seen = function.sight is not None and function.sight.process is not None
    return seen and function.enable == function.idle
