# SPDX-License-Identifier: Apache-2.0
"""Stale resources: the Node still lists them with a count of 0, although no plugin offers them any more.

Stale resources are reported. If ``cluster.staleResources`` is ``remove``, a stale resource is removed from
the Node when both counts are 0, the kubelet has forgotten the name, and some time has passed. Each name is
removed only once: if the name returns, another program has written it on purpose. There is no extra request
to the API server, because the Node is watched anyway. The kubelet's checkpoint is read periodically while a
stale resource exists. Only names that nodeagent has offered on this node can be stale. These names are saved
on disk; if there are too many, the oldest are dropped.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from nodeagent.agent.cluster.writer import Api, WritePermission
from nodeagent.agent.core import Core
from nodeagent.base import log, threads
from nodeagent.base.errors import ClusterUnavailable, KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.state import OFFERED, Section
from nodeagent.cluster import node_status
from nodeagent.cluster.api import INVALID, NOT_FOUND, retry_delay
from nodeagent.kubelet import checkpoint
from nodeagent.kubelet.socket_dir import CHECKPOINT
from nodeagent.model.status import ClusterStatus, StaleStatus

MOST = 256  # names on disk
SHOWN = 16  # names of removed resources
KNOWN = "the kubelet still knows this resource, and would write it to the Node again"
UNKNOWN = "the kubelet's checkpoint cannot be read, so the kubelet may still know this resource"
BACK = "it came back after nodeagent removed it: another program writes it to the Node"
_HINT = "to remove it from the Node, set cluster.staleResources: remove"


def _parse_names(document: dict[str, Any]) -> tuple[str, ...]:
    names = tuple(document["names"])
    if not all(isinstance(name, str) for name in names):
        raise TypeError("a name is a text")
    return names


SECTION: Section[tuple[str, ...]] = Section(
    OFFERED,
    (),
    _parse_names,
    lambda names: {"names": names},
    "after a restart nodeagent does not know which resources it has offered before",
)


class StaleResources:
    """The task of ``follow`` that reports and removes stale resources, and saves the offered names."""

    name = "stale resources"

    def __init__(self, core: Core, jitter: Callable[[], float] = random.random) -> None:
        self._core = core
        self._jitter = jitter
        self._names: tuple[str, ...] | None = None  # all names ever offered, the oldest first; None: not read
        self._permission = WritePermission("the counts of stale resources", core.timeouts.missing_right_retry)
        self._stale: tuple[StaleStatus, ...] = ()
        self._removed: tuple[str, ...] = ()
        self._taken: set[str] = set()  # removed, and not offered since
        self._unseen: dict[str, float] = {}  # removed name → until when the watch may still show it
        self._due: dict[str, float] = {}  # name → when it may be removed
        self._failures = 0

    def add_status(self, status: ClusterStatus) -> ClusterStatus:
        """Add stale and removed resources, and a missing permission, to the status."""
        return self._permission.add_status(status)._replace(stale=self._stale, stale_removed=self._removed)

    async def run(self, api: Api) -> None:
        """Look for stale resources whenever an input has changed, for ever."""
        bell: Latest[None] = Latest(None)
        async with anyio.create_task_group() as group:
            for follow in (
                api.own.follow,
                self._core.offering.of_plugins.follow,
                self._core.settings.follow,
            ):
                group.start_soon(follow, lambda _: bell.touch(), name="inputs of stale resources")
            while True:
                seen = bell.version
                pause = await self._turn(api)
                with anyio.move_on_after(pause):
                    await bell.newer(seen)

    async def _turn(self, api: Api) -> float:
        """Look for stale resources and remove one that is due; return the seconds until the next check."""
        offered = self._core.offering.of_plugins.get()
        self._taken.difference_update(offered)
        names = await self.learn_names(offered)
        document = api.document
        wanted = document is not None and self._mode != "off"
        self._show(await self._found(node_status.zero_counts(document or {}, names) if wanted else ()))
        if not self._stale:
            return self._resync if self._unseen else math.inf
        if self._mode != "remove" or self._permission.missing:
            return self._resync
        return await self._remove(api)

    @property
    def _mode(self) -> str:
        """The setting for stale resources: report, remove, off."""
        return self._core.settings.get().cluster.stale_resources

    async def learn_names(self, offered: Iterable[str]) -> tuple[str, ...]:
        """Return all names that were ever offered, including these; a failed write to disk is ignored."""
        known = self._names
        if known is None:
            known = await threads.call(SECTION.load, self._core.root.prefix)
        self._names = add_names(known, offered)
        if self._names != known:
            with suppress(KernelRefused):  # logged for the saved cluster state in the same directory
                await threads.call(SECTION.save, self._core.root.prefix, self._names)
        return self._names

    async def _found(self, empty: tuple[str, ...]) -> tuple[StaleStatus, ...]:
        now = anyio.current_time()
        self._unseen = {name: until for name, until in self._unseen.items() if name in empty and now < until}
        resources = self._core.offering.of_plugins
        empty = tuple(name for name in empty if name not in self._unseen and name not in resources.get())
        if not empty:
            return ()
        directory = Path(self._core.root.path(self._core.settings.get().kubelet.device_plugin_dir))
        known = await threads.call(checkpoint.known_resources, str(directory / CHECKPOINT))
        offered = resources.get()  # read again after the wait
        return tuple(find_stale(empty, offered, known, self._taken))

    def _show(self, found: tuple[StaleStatus, ...]) -> None:
        """Publish the stale resources, and log new ones that the kubelet has forgotten."""
        before = {each.resource for each in self._stale if each.message != KNOWN}
        hint = None if self._mode == "remove" else _HINT
        for each in found:
            if each.message != KNOWN and each.resource not in before:
                log.event(log.STALE_RESOURCE, resource=each.resource, hint=each.message or hint)
        if found != self._stale:
            self._stale = found
            self._core.snapshots.touch()
        now, timeouts = anyio.current_time(), self._core.timeouts
        settled, spread = now + timeouts.stale_resource_settle, timeouts.stale_resource_spread
        self._due = {
            each.resource: self._due.get(each.resource, settled + spread * self._jitter())
            for each in found
            if not each.message
        }

    async def _remove(self, api: Api) -> float:
        """Remove one stale resource that is due; return 0, because the others must be checked again."""
        now, document = anyio.current_time(), api.document
        name, due = min(self._due.items(), key=lambda item: item[1], default=("", math.inf))
        if document is None or due > now:
            return max(0.0, min(self._resync, due - now))
        try:
            removed = await self._permission.write(node_status.remove_counts(api.session, document, name))
        except ClusterUnavailable as error:
            return self._postpone(error)
        if not removed:
            return self._resync
        self._failures = 0
        self._removed = (*self._removed, name)[-SHOWN:]
        self._taken.add(name)
        self._unseen[name] = anyio.current_time() + self._core.timeouts.removed_resource_seen
        log.event(log.STALE_RESOURCE_REMOVED, resource=name)
        self._core.snapshots.touch()
        return 0.0

    def _postpone(self, error: ClusterUnavailable) -> float:
        """Return the seconds until the next try; until then no resource is removed."""
        if error.status in (INVALID, NOT_FOUND):
            pause = self._resync
        else:
            attempt, self._failures = self._failures, self._failures + 1
            pause = retry_delay(error, attempt, self._jitter(), self._core.timeouts)
        again = anyio.current_time() + pause
        self._due = {name: max(due, again) for name, due in self._due.items()}
        return pause

    @property
    def _resync(self) -> float:
        return self._core.settings.get().timing.resync


def add_names(known: Collection[str], offered: Iterable[str]) -> tuple[str, ...]:
    """Return all names, each once, the newest last, limited to the number that is kept."""
    new = tuple(dict.fromkeys(offered))
    return (*(name for name in known if name not in new), *sorted(new))[-MOST:]


def find_stale(
    empty: Collection[str],
    offered: Collection[str],
    known: Collection[str] | None,
    removed: Collection[str] = (),
) -> Iterator[StaleStatus]:
    """Return the stale resources (both counts on the Node are 0), and which of them may be removed.

    A kubelet knows a resource from the first device list of its plugin until five minutes after the plugin
    disconnected or the kubelet started (``endpointStopGracePeriod``). While the kubelet knows a resource, it
    corrects the counts on the Node; afterwards it never changes that entry of the Node, which stays "0".

    ``empty``: names that nodeagent has offered before, and that the Node lists with capacity and allocatable
    0. ``offered``: the names that nodeagent offers now.

    ``known``: the resource names of all plugins that the kubelet knows; None if they were not read.
    ``removed``: the names that nodeagent has removed before.
    """
    for name in empty:
        if name in offered:
            continue
        if known is None:
            yield StaleStatus(name, UNKNOWN)
        elif name in known:
            yield StaleStatus(name, KNOWN)
        else:
            yield StaleStatus(name, BACK if name in removed else "")
