# SPDX-License-Identifier: Apache-2.0
"""Sends Events about this node and its pods to the API server, if ``cluster.events`` is on.

``follow`` runs this task while there is a session with the API server. The task compares each Status with the
previous one (``node_events``) and queues the Events; the queue limits their rate and age. Changes within a
moment are compared together, so that a card with twenty PCI functions that falls off the bus causes one Event
instead of twenty. No other component waits for an Event: after a failure the request is retried later, and an
Event that the API server rejects is dropped.
"""

from __future__ import annotations

import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import anyio

from nodeagent.agent.cluster.node_events import NodeEvent, compare_cards, diff, find_lasting, fold
from nodeagent.agent.cluster.writer import Api, WritePermission
from nodeagent.agent.core import Core
from nodeagent.base import log, threads
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster import events
from nodeagent.cluster.api import CONFLICT, TOO_MANY, UNAUTHORIZED, retry_delay
from nodeagent.cluster.events import Event, Involved, Occurrences
from nodeagent.kubelet.checkpoint import CheckpointFile, Entry
from nodeagent.kubelet.socket_dir import CHECKPOINT
from nodeagent.model.allocation import ResourceDevice
from nodeagent.model.status import ClusterStatus, Status

BURST = 25
_KEPT = 256  # Events whose count is remembered
_RETRIED = (0, UNAUTHORIZED, 408, CONFLICT, TOO_MANY)  # and all errors from 500 on


class QueuedEvent(NamedTuple):
    """An Event that occurred ``times`` times since it was last sent, and is not sent before ``due``."""

    event: NodeEvent
    times: int
    first: float
    last: float
    due: float


class EventQueue:
    """The queue of Events that are not sent yet. Times are seconds of the event loop's clock. Pure.

    The rate is that of client-go's spam filter (tools/record/events_cache.go): 25 at once, then one in five
    minutes. ``left_out`` counts the dropped Events: beyond that rate, too old, or rejected by the API server.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self.left_out = 0
        self._timeouts = timeouts
        self._queued: dict[NodeEvent, QueuedEvent] = {}  # the next first
        self._tokens = float(BURST)
        self._filled = 0.0

    def add(self, event: NodeEvent, now: float, delay: float = 0.0) -> bool:
        """Queue the Event, or count it once more if it is queued already; False if it exceeds the rate."""
        self._drop_old(now)
        self._tokens = min(float(BURST), self._tokens + (now - self._filled) / self._timeouts.event_refill)
        self._filled = now
        if self._tokens < 1.0:
            self.left_out += 1
            return False
        self._tokens -= 1.0
        before = self._queued.get(event, QueuedEvent(event, 0, now, now, now + delay))
        self._queued[event] = before._replace(times=before.times + 1, last=now)
        return True

    def next(self, now: float) -> QueuedEvent | None:
        """The next Event that is due."""
        self._drop_old(now)
        return next((queued for queued in self._queued.values() if queued.due <= now), None)

    @property
    def next_due(self) -> float:
        """The time at which the next Event is due; infinite if none is queued."""
        return min((queued.due for queued in self._queued.values()), default=math.inf)

    def remove(self, sent: QueuedEvent) -> None:
        """Remove an Event that was sent; if it occurred again meanwhile, it stays queued."""
        now = self._queued.pop(sent.event, sent)
        if now.times > sent.times:
            self._queued[sent.event] = now._replace(times=now.times - sent.times, first=now.last)

    def postpone(self, queued: QueuedEvent) -> None:
        """Move an Event that could not be sent behind all others."""
        if queued.event in self._queued:
            self._queued[queued.event] = self._queued.pop(queued.event)

    def drop(self, queued: QueuedEvent) -> None:
        """Drop an Event that can never be sent."""
        self._queued.pop(queued.event, None)
        self.left_out += queued.times

    def _drop_old(self, now: float) -> None:
        for queued in list(self._queued.values()):
            if now - queued.last > self._timeouts.event_age:
                self.drop(queued)


class Events:
    """The task that compares Statuses in one loop, and sends the queued Events in another one."""

    name = "Events"

    def __init__(
        self, core: Core, status: Callable[[], Status], jitter: Callable[[], float] = random.random
    ) -> None:
        pause = core.timeouts.missing_right_retry
        self._core = core
        self._status = status
        self._timeouts = core.timeouts
        self._jitter = jitter
        self._queue = EventQueue(core.timeouts)
        self._queued: Latest[None] = Latest(None)  # touched when an Event was queued
        self._rate_exceeded = False
        self._of_node = WritePermission("Events about this node", pause)
        self._of_pods = WritePermission("Events about pods", pause)
        self._counts: OrderedDict[Event, int] = OrderedDict()  # Event → how often it was sent

    def add_status(self, status: ClusterStatus) -> ClusterStatus:
        """Add missing permissions and the number of dropped Events to the status."""
        status = self._of_pods.add_status(self._of_node.add_status(status))
        return status._replace(events_dropped=self._queue.left_out)

    async def run(self, api: Api) -> None:
        """Compare Statuses and send Events while the settings enable Events, for ever."""
        settings, seen = self._core.settings, -1
        while True:
            enabled = settings.get().cluster.events
            async with anyio.create_task_group() as group:
                if enabled:
                    group.start_soon(self._send_queue, api, name="sending of Events")
                    group.start_soon(self._compare, name="looking for Events")
                while settings.get().cluster.events == enabled:
                    seen, _ = await settings.newer(seen)
                group.cancel_scope.cancel()

    async def _compare(self) -> None:
        timeouts, seen = self._timeouts, -1
        before = self._status()
        changes = before.changes
        async with anyio.create_task_group() as group:
            group.start_soon(self._add_lasting, before, name="problems at the start")
            while True:
                with anyio.move_on_after(timeouts.cluster_status_poll):
                    seen, _ = await self._core.snapshots.newer(seen)
                await anyio.sleep(timeouts.event_gather)
                now = self._status()
                of_cards, changes = compare_cards(changes, now.changes)
                self._add([*diff(before, now), *of_cards])
                before = now

    async def _add_lasting(self, first: Status) -> None:
        """Report problems that existed at the start and still exist after a while.

        Comparing Statuses does not find these problems: a device that broke before the start of the daemon
        does not change any more.
        """
        await anyio.sleep(self._timeouts.event_settle + self._timeouts.event_spread * self._jitter())
        self._add(find_lasting(first, self._status()))

    def _add(self, found: Iterable[NodeEvent]) -> None:
        """Queue the Events, and log when they start to exceed the rate limit."""
        now = anyio.current_time()
        for event in fold(found):
            delay = self._timeouts.event_spread * self._jitter() if event.reason.everywhere else 0.0
            queued = self._queue.add(event, now, delay)
            if queued:
                self._queued.touch()
            elif not self._rate_exceeded:
                log.event(log.CLUSTER_EVENTS_DROPPED)
            self._rate_exceeded = not queued

    async def _send_queue(self, api: Api) -> None:
        await api.wait_for_node()
        failures = 0
        while True:
            seen = self._queued.version
            queued = self._queue.next(anyio.current_time())
            if queued is None:
                with anyio.move_on_after(self._queue.next_due - anyio.current_time()):
                    await self._queued.newer(seen)
                continue
            try:
                await self._send(api, queued)
                failures = 0
            except ClusterUnavailable as error:
                self._queue.postpone(queued)
                await anyio.sleep(retry_delay(error, failures, random.random(), self._timeouts))
                failures += 1

    async def _send(self, api: Api, queued: QueuedEvent) -> None:
        """Send the Event, or drop it. :raises ClusterUnavailable: if it may be tried again."""
        permission = self._of_pods if queued.event.pod else self._of_node
        involved = await self._involved(api, queued.event.pod)
        if permission.missing or involved is None:
            self._queue.drop(queued)
            return
        try:
            sent = await permission.write(self._write(api, queued, involved))
        except ClusterUnavailable as error:
            if error.status in _RETRIED or error.status >= 500:
                raise
            sent = False
        if sent:
            self._queue.remove(queued)
        else:
            self._queue.drop(queued)

    async def _involved(self, api: Api, pod: str) -> Involved | None:
        """The object that the Event is about; None if there is no such Node."""
        if pod:
            namespace, _, name = pod.partition("/")
            return Involved(name, await self._uid(pod), namespace)
        if api.document is None:
            return None
        return Involved(api.node, str(api.document["metadata"].get("uid", "")))

    async def _uid(self, pod: str) -> str:
        """The uid of a pod that uses devices; "" if unknown.

        ``kubectl describe pod`` shows only Events with the pod's uid. PodResources does not have the uid, but
        the kubelet's checkpoint does, and reading it needs no permission to read pods.
        """
        held = self._core.snapshots.now.allocations.held()
        devices = {(holder.resource, each) for each, holder in held if str(holder) == pod}
        directory = Path(self._core.root.path(self._core.settings.get().kubelet.device_plugin_dir))
        checkpoint = CheckpointFile(str(directory / CHECKPOINT))
        return find_uid((await threads.call(checkpoint.read)).entries, devices)

    async def _write(self, api: Api, queued: QueuedEvent, involved: Involved) -> None:
        reason, since = queued.event.reason, time.time() - anyio.current_time()
        event = Event(involved, reason.name, events.on_one_line(queued.event.message), reason.warning)
        occurrences = Occurrences(queued.times, since + queued.first, since + queued.last)
        count = await events.write(api.session, api.node, event, occurrences, self._counts.pop(event, 0))
        self._counts[event] = count
        if len(self._counts) > _KEPT:
            self._counts.popitem(last=False)


def find_uid(entries: Iterable[Entry], devices: set[ResourceDevice]) -> str:
    """The pod uid that the checkpoint has for these devices; "" if there are several uids, or none."""
    found = {entry.uid for entry in entries if (entry.resource, entry.device_id) in devices}
    return found.pop() if len(found) == 1 else ""
