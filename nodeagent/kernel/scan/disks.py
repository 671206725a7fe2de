# SPDX-License-Identifier: Apache-2.0
"""Finds the block devices that the host uses: mounted, used as swap, or part of md, LVM or device mapper.

Mounts are those of the host's process 1, compared by device number, or by name for file systems with their
own numbers (btrfs). In a container the mounts of the host's process 1 are not visible. Then the container's
own mounts count, and the mounts that some file systems show in ``/sys/fs`` for every namespace. Swap is
visible in all namespaces. Finding the processes that have a disk open requires a search of all processes, so
it is done on demand only. The disks of a ZFS pool are not visible, but the pool itself is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from nodeagent.kernel import open_files
from nodeagent.kernel.root import Root
from nodeagent.model.host import HostUse, HostUses, UseKind

BLOCKS = "/sys/class/block"
MOUNTS = "/proc/1/mountinfo"
_POOLS = "/proc/spl/kstat/zfs"  # contains a file ``state`` for each imported pool
_FILE_SYSTEMS = ("ext4", "xfs", "f2fs")  # /sys/fs/<name>/<block device> exists while one is mounted
_BTRFS = "/sys/fs/btrfs"
_ESCAPE = re.compile(r"\\([0-7]{3})")
_PATH_OF_HEAD = re.compile(r"(nvme\d+)c\d+(n\d+)")


class Storage(NamedTuple):
    """Mount points by device number or name, names of swap devices, and whether all mounts are visible.

    ``loops``: loop device → the block device below it. ``pools``: names of ZFS pools.
    """

    mounted: Mapping[str, str]
    swaps: frozenset[str]
    whole: bool
    loops: Mapping[str, str]
    pools: tuple[str, ...]


def read_storage(root: Root) -> Storage:
    """Return the mounts and the swap devices."""
    text = root.text(MOUNTS, errors="replace")  # paths are bytes
    mounted = {key: point for keys, point in _parse_mounts(text or "") for key in keys if key}
    btrfs = (name for each in root.names(_BTRFS) for name in root.names(f"{_BTRFS}/{each}/devices"))
    in_any_namespace = [*btrfs, *(name for each in _FILE_SYSTEMS for name in root.names(f"/sys/fs/{each}"))]
    lines = (root.text("/proc/swaps", errors="replace") or "").splitlines()[1:]
    swaps = frozenset(_basename(line.split()[0]) for line in lines if line.startswith("/dev/"))
    return Storage(
        {**dict.fromkeys(in_any_namespace, ""), **mounted},
        swaps,
        text is not None and open_files.sees_all_processes(root),
        dict(_loops(root)),
        tuple(name for name in root.names(_POOLS) if root.exists(f"{_POOLS}/{name}/state")),
    )


def _loops(root: Root) -> Iterator[tuple[str, str]]:
    """Yield the loop devices directly on a block device, which does not list them as its holders."""
    for name in root.names(BLOCKS):
        path = root.text(f"{BLOCKS}/{name}/loop/backing_file") if name.startswith("loop") else None
        if path is not None and path.startswith("/dev/"):
            yield name, _basename(path)


def find_uses(root: Root, names: Iterable[str], storage: Storage) -> HostUses:
    """Return the uses of these block devices by the host."""
    names = tuple(names)
    found = tuple(use for name in names for use in _uses_of_disk(root, name, storage))
    if not names or found:
        return HostUses(found)
    pools = tuple(
        HostUse(UseKind.POOL, ", ".join(names), f"may be part of the ZFS pool {pool}")
        for pool in storage.pools
    )
    mounts = f"what is mounted: {MOUNTS} is not that of the host, or cannot be read"
    return HostUses(pools, () if storage.whole else (mounts,))


def find_open(root: Root, names: Iterable[str], storage: Storage) -> HostUses:
    """Return the uses of these block devices, and of the devices on them, by processes. Slow."""
    names = tuple(dict.fromkeys(above for name in names for above in _stack_above(root, name, storage)))
    files = open_files.find_open(root, {name: open_files.block_device(root, name) for name in names})
    found = tuple(HostUse(UseKind.OPEN, name, f"open by {who}") for name, who in files.openers.items())
    return HostUses(found, () if found or files.decisive or not names else ("which processes have it open",))


def add_multipath_heads(names: Iterable[str], targets: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of block devices; for a path of a multipath NVMe namespace, also its disk and
    partitions.
    """
    result = dict.fromkeys(names)
    for match in [match for name in result if (match := _PATH_OF_HEAD.fullmatch(name))]:
        head = match[1] + match[2]
        result |= {name: None for name, target in targets.items() if head in target.split("/")}
    return tuple(result)


def _uses_of_disk(root: Root, name: str, storage: Storage) -> Iterator[HostUse]:
    how = _direct_use(root, name, storage)
    if how is not None:
        yield HostUse(how[0], name, how[1])
    for holder in _holders(root, name, storage):
        above = (_direct_use(root, each, storage) for each in _stack_above(root, holder, storage))
        carried = next(filter(None, above), None)
        kind = carried[0] if carried else UseKind.STACKED
        yield HostUse(kind, name, f"part of {holder}" + (f", {carried[1]}" if carried else ""))


def _direct_use(root: Root, name: str, storage: Storage) -> tuple[UseKind, str] | None:
    if name in storage.swaps:
        return UseKind.SWAP, "swap"
    keys = (root.text(f"{BLOCKS}/{name}/dev") or "", name)
    points = [storage.mounted[key] for key in keys if key in storage.mounted]
    if not points:
        return None
    point = next(filter(None, points), "")
    return UseKind.MOUNTED, f"mounted on {point}" if point else "mounted"


def _stack_above(root: Root, name: str, storage: Storage, depth: int = 8) -> Iterator[str]:
    """Yield the device and the devices stacked on it."""
    yield name
    if depth:
        for holder in _holders(root, name, storage):
            yield from _stack_above(root, holder, storage, depth - 1)


def _holders(root: Root, name: str, storage: Storage) -> tuple[str, ...]:
    loops = (loop for loop, backing in storage.loops.items() if backing == name)
    return (*root.names(f"{BLOCKS}/{name}/holders"), *loops)


def _parse_mounts(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the device number and name of the source, and the mount point, from mountinfo(5)."""
    for line in reversed(text.splitlines()):
        words, _, rest = line.partition(" - ")
        fields, source = words.split(), rest.split()
        if len(fields) > 4 and len(source) > 1:
            name = _basename(source[1]) if source[1].startswith("/dev/") else ""
            yield (fields[2], name), _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])


def _basename(path: str) -> str:
    return path.rpartition("/")[2]
