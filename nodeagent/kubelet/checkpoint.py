# SPDX-License-Identifier: Apache-2.0
"""The device manager's checkpoint: which ids pods hold, as the kubelet wrote it last. Read, never written.

It is no API (pkg/kubelet/cm/devicemanager/checkpoint), so any content is borne. It is written at allocations
and at each list message, not when a pod ends; so it may name pods that have ended, and is a hint only. Where
PodResources names nobody yet, it is all there is.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

from nodeagent.kubelet.alloc_resp import Answer, understood
from nodeagent.model.allocation import Possession
from nodeagent.model.ids import ResourceName

Stamp = tuple[int, int, int]
"""Inode, time of the last change in ns, size: the kubelet writes the file anew each time."""


_UNREADABLE = (OSError, ValueError, LookupError, TypeError, RecursionError)


class Entry(NamedTuple):
    """One id that one pod holds; ``numa`` is what the kubelet was told of its topology.

    ``answer`` is what its container was given for it, and for the ids that were asked for with it.
    """

    uid: str
    resource: ResourceName
    device_id: str
    numa: int | None
    answer: Answer = Answer()


class Checkpoint(NamedTuple):
    """What the file says, and when it was written; no stamp if there is none."""

    written: Stamp | None = None
    entries: tuple[Entry, ...] = ()
    admitted: frozenset[str] | None = None  # uids of pods that the kubelet has begun to start; None: unknown
    by: float = 0.0  # when it was seen first, in seconds of time.monotonic
    after: float = 0.0  # when the one before was seen last

    def well_after(self, then: float, gap: float) -> bool:
        """True if it was written ``gap`` seconds or more after one that was there by ``then``.

        Of those that are, older ones may be the last: ``writeCheckpoint`` in
        pkg/kubelet/cm/devicemanager/manager.go takes what is to be written under one lock, and waits for
        another one then. They follow each other at once. Their own times do not tell: some file systems have
        whole seconds only, and the clock may be set in between.
        """
        return self.after >= then + gap

    def of(self, ids: Collection[str]) -> frozenset[Possession]:
        """What pods have of these ids, whoever they are."""
        if not ids:
            return frozenset()
        return frozenset((each.resource, each.device_id) for each in self.entries if each.device_id in ids)

    @property
    def settled(self) -> frozenset[Possession]:
        """What pods have whose admission is over, or that are not known to be in it."""
        entries = self.entries
        if self.admitted is not None:
            entries = tuple(entry for entry in entries if entry.uid in self.admitted)
        return frozenset((entry.resource, entry.device_id) for entry in entries)

    def begun(self, before: Collection[str] = ()) -> frozenset[Possession]:
        """What pods have that the kubelet has begun to start, but for those that it had ``before``.

        Nothing, if that cannot be seen. A pod that has ended may keep its directory for long.
        """
        begun = (self.admitted or frozenset()).difference(before)
        return frozenset((entry.resource, entry.device_id) for entry in self.entries if entry.uid in begun)


class CheckpointFile:
    """The file, read anew when it has changed.

    ``pods`` is the directory in which the kubelet makes one for each pod right after its admission
    (``makePodDataDirs``, called by ``SyncPod`` in pkg/kubelet/kubelet.go).
    """

    def __init__(self, path: str, pods: str) -> None:
        self._path = path
        self._pods = pods
        self._checkpoint = Checkpoint()
        self._still = 0.0  # when it was seen last
        self._one_by_one = Lock()  # a slow look at an old file would make a new one of the next

    def read(self) -> Checkpoint:
        """What it says now, or said when it could be read last. Blocks on a file."""
        with self._one_by_one:
            self._read()
            checkpoint = self._checkpoint
        return checkpoint._replace(admitted=self._admitted())

    def _read(self) -> None:
        began, known = time.monotonic(), self._checkpoint
        with contextlib.suppress(OSError), Path(self._path).open("rb") as file:
            written = _stamp(file)  # of what is read: the kubelet may put another one in its place
            by = time.monotonic()
            entries = known.entries if _is_same(written, known.written) else _entries(file)
            if entries is None:
                return
            if (written, entries) != (known.written, known.entries):
                self._checkpoint = Checkpoint(written, entries, by=by, after=self._still)
            self._still = began

    def _admitted(self) -> frozenset[str] | None:
        try:
            with os.scandir(self._pods) as found:
                return frozenset(each.name for each in found)
        except OSError:
            return None


def known_resources(path: str) -> frozenset[str] | None:
    """The resources that the kubelet knows; None for a file that cannot be read. Blocks on it.

    It writes the file anew when it forgets one, before it writes its Node (``GetCapacity`` in
    devicemanager/manager.go).
    """
    try:
        data = json.loads(Path(path).read_bytes())["Data"]
        registered, pods = data["RegisteredDevices"], data["PodDeviceEntries"]
        return frozenset(registered or ()) | {pod["ResourceName"] for pod in pods or ()}
    except _UNREADABLE:
        return None


def _stamp(file: BinaryIO) -> Stamp:
    status = os.fstat(file.fileno())
    return status.st_ino, status.st_mtime_ns, status.st_size


def _is_same(one: Stamp, other: Stamp | None) -> bool:
    """True if it is the same file; where times are whole seconds, that is not known."""
    return one == other and one[1] % 10**9 != 0


def _entries(file: BinaryIO) -> tuple[Entry, ...] | None:
    """All entries that can be understood; None for a file that cannot be read, which says nothing."""
    try:
        document = json.loads(file.read())
        pods = tuple(document["Data"]["PodDeviceEntries"] or ())
    except _UNREADABLE:
        return None
    found: dict[Entry, None] = {}
    for pod in pods:
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            found |= dict.fromkeys(_of_pod(pod))
    return tuple(found)


def _of_pod(pod: dict[str, Any]) -> Iterator[Entry]:
    """By NUMA node, which is "-1" for an id without topology; a list before Kubernetes 1.20.

    A number is somebody's share, unless the answer to its Allocate has the node of that IOMMU group: then it
    is virt-handler's.
    """
    answer = understood(pod.get("AllocResp") or "")
    by_node = pod["DeviceIDs"]
    if isinstance(by_node, list):
        by_node = {"-1": by_node}
    for node, ids in by_node.items():
        numa = int(node)
        for device_id in map(str, ids):
            if device_id.isdecimal() and int(device_id) not in answer.groups:
                continue
            yield Entry(
                str(pod["PodUID"]),
                ResourceName(pod["ResourceName"]),
                str(device_id),
                numa if numa >= 0 else None,
                answer,
            )
