# SPDX-License-Identifier: Apache-2.0
"""Before a USB device is lent: is it closed by whoever had it? Nothing counts its opens, so processes tell.

A container may outlive its pod by seconds. Whoever was seen with a device, and is ending, has it yet; so may
anybody who is ending, if a pod had the device until a moment ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import anyio

from nodeagent.agent.forgotten import Forgotten
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import in_use
from nodeagent.kernel.apply import owner
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import usb_uses
from nodeagent.model.usb import UsbDevice
from nodeagent.policy.offer import usb_sets


class _Found(NamedTuple):
    """Who has which of the nodes, by place on the bus; which are closed for sure."""

    openers: in_use.Openers
    closed: frozenset[str]


class _Memory(NamedTuple):
    """Who was seen to have a device."""

    id: str
    openers: tuple[str, ...]


class UsbClosing:
    """Waits until USB devices are closed; remembers who was seen with one."""

    def __init__(self, root: Root, snapshots: Snapshots, forgotten: Forgotten, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._root = root
        self._snapshots = snapshots
        self._forgotten = forgotten
        self._nodes = threads.OneByOne()
        self._disks = threads.OneByOne()
        self._had: dict[str, _Memory] = {}  # by place on the bus

    async def closed(self, devices: Sequence[UsbDevice]) -> None:
        """Wait until no process has them open, or one of their disks.

        :raises KernelRefused: if that takes too long.
        """
        end = anyio.current_time() + self._timeouts.usb_holder_close
        while opened := await self._opened(devices) or await self._used(devices):
            if anyio.current_time() > end:
                hint = "the container of a pod that was deleted by force may still run: look for its process"
                raise KernelRefused(opened, hint)
            await anyio.sleep(self._timeouts.usb_close_poll)

    async def _opened(self, devices: Sequence[UsbDevice]) -> str | None:
        """Which of them a process has open, in words; None if nothing is known to.

        Where that cannot be seen, whoever had one until a moment ago counts as one that has it open.
        """
        had = {each.place: self._had[each.place].openers for each in devices if self._knows(each)}
        places = [each.place for each in devices]
        found = (
            await self._nodes.call(self._timeouts.open_file_scan, _look, self._root, places, had)
            if places
            else None
        )
        openers, closed = found or _Found(had, frozenset())
        self._had = {each: known for each, known in self._had.items() if each not in places}
        self._had |= {
            each.place: _Memory(each.id, who) for each in devices if (who := openers.get(each.place))
        }
        for each in devices:
            if each.place in openers:
                return f"{each.id}: open by {openers[each.place][-1]}"
        if not closed.issuperset(places) and self._doubted(devices):
            return f"{devices[0].id}: who had it until a moment ago may have it open yet"
        return None

    def _knows(self, device: UsbDevice) -> bool:
        """True if somebody had this one when it was looked at last; numbers on a bus come again."""
        known = self._had.get(device.place)
        return known is not None and known.id == device.id

    async def _used(self, devices: Sequence[UsbDevice]) -> str | None:
        """Which of them has a disk that a process has open, in words."""
        driven = [each for each in devices if each.driver]
        if not driven:
            return None
        used = await self._disks.call(self._timeouts.open_file_scan, _disks_open, self._root, driven)
        return f"{driven[0].id}: what has its disks open cannot be seen in time" if used is None else used

    def _doubted(self, devices: Sequence[UsbDevice]) -> bool:
        """True if a pod had one of them a moment ago: alone, in a set of then, or by a node of it."""
        now = anyio.current_time()
        had = usb_sets.were_in_containers(self._forgotten.lately(now), self._snapshots.now)
        return any(each.id in had or self._forgotten.has(each, now) for each in devices)


def _look(root: Root, places: Sequence[str], had: in_use.Openers) -> _Found:
    """Who is ending is asked last: he begins under the look, and has a table neither before nor behind."""
    seen = in_use.characters_open(root, {each: "{}:{}".format(*owner.number(each)) for each in places})
    return _Found({**in_use.lasting(root, had), **seen.openers}, seen.closed)


def _disks_open(root: Root, devices: Sequence[UsbDevice]) -> str:
    for each in devices:
        for use in usb_uses.opened(root, each).found:
            return f"{each.id}: in use by the host ({use})"
    return ""
