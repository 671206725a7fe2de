# SPDX-License-Identifier: Apache-2.0
"""Watches the KubeVirt CR and this node's Node, and publishes their configuration, if the settings enable it.

No decision waits for the API server: while the server does not answer, the last configuration stays in force,
even after a reboot (``state``). There are two watches with one connection each, and no polling. While there
is a session with the API server, the tasks that write to the cluster run as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import anyio

from nodeagent.agent.cluster import state
from nodeagent.agent.cluster.condition import ConditionWriter
from nodeagent.agent.cluster.connection import Connection, follow_connection
from nodeagent.agent.cluster.events import Events
from nodeagent.agent.cluster.stale import StaleResources
from nodeagent.agent.cluster.state import ClusterState
from nodeagent.agent.cluster.writer import Api, ClusterWriter
from nodeagent.agent.core import Core
from nodeagent.base import log, threads
from nodeagent.base.errors import InternalError, KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Task
from nodeagent.cluster.api import Session
from nodeagent.cluster.watch import Resource, Watch
from nodeagent.model.configuration import Configuration
from nodeagent.model.kubevirt import ClusterConfig
from nodeagent.model.problem import Problem
from nodeagent.model.status import ClusterStatus, Status
from nodeagent.policy import merge

_NOT_FOLLOWED = (
    "nodeagent has no credentials for the cluster any more: the last KubeVirt CR stays in force until "
    "nodeagent restarts, which may then offer the same devices as virt-handler; restore the credentials first"
)
LOGGED = 20  # lines about the KubeVirt CR and the Node that are logged at a time
KUBEVIRTS = Resource("/apis/kubevirt.io/v1/kubevirts", "KubeVirt CRs", trim=state.trim_cr)


def follower(core: Core, status: Callable[[], Status]) -> ClusterFollower:
    """The component that follows the cluster, with its tasks; ``status`` collects the Status."""
    return ClusterFollower(core, (Events(core, status), ConditionWriter(core, status), StaleResources(core)))


class ClusterFollower:
    """No other component writes ``core.cluster`` while this one runs, or the saved state."""

    name = "cluster"

    def __init__(self, core: Core, tasks: Sequence[ClusterWriter] = ()) -> None:
        self.state = Latest(ClusterState())
        self._core = core
        self._tasks = tasks
        self._saved = ClusterState()
        self._unsaved = ""  # why the newest state is not on disk
        self._watches: tuple[Watch, ...] = ()
        self._objections: tuple[Configuration, ClusterConfig, tuple[Problem, ...]] | None = None

    @property
    def status(self) -> ClusterStatus:
        """The state of the connection, and the age of the configuration in force."""
        known = [watch.state.get() for watch in self._watches]
        silent = next((each for each in known if not each.answers), None)
        cr = self.state.get().config.kubevirt
        cluster = ClusterStatus(
            enabled=bool(known),
            reachable=bool(known) and silent is None,
            since=silent.at if silent is not None else max((each.at for each in known), default=0.0),
            kubevirt="" if cr is None else f"{cr.namespace}/{cr.name}",
            last_saved=self._saved.saved,
            error=silent.error if silent is not None else "",
            hint=silent.hint if silent is not None else "",
            warnings=self._doubts(),
            refused=self._list_objections(),
        )
        for task in self._tasks:
            cluster = task.add_status(cluster)
        return cluster

    def _doubts(self) -> tuple[str, ...]:
        now = self.state.get()
        not_followed = _NOT_FOLLOWED if not self._watches and now.config != ClusterConfig() else ""
        return (*now.doubts, *(line for line in (self._unsaved, not_followed) if line))

    def _list_objections(self) -> tuple[Problem, ...]:
        """The parts of the KubeVirt CR that are not in force; cached, because there may be thousands."""
        cluster, configuration = self.state.get().config, self._core.settings.get().configuration
        last = self._objections
        if last is None or last[0] is not configuration or last[1] != cluster:
            found = merge.objections(configuration, cluster.kubevirt, cluster.labels)
            last = self._objections = configuration, cluster, tuple(map(state.with_place, found))
        return last[2]

    async def run(self) -> None:
        """Follow the cluster that the settings name, for ever; start again when they name another one."""
        self._saved = await threads.call(state.SECTION.load, self._core.root.prefix)
        self.state.set(self._saved)
        self._core.cluster.set(self._saved.config)
        async with anyio.create_task_group() as all_time:
            all_time.start_soon(self.save_states, name="record of the cluster")
            await follow_connection(self._core.settings, self._core.root, self._follow)

    async def _follow(self, connection: Connection) -> None:
        self._watches = ()
        credentials = connection.credentials
        if credentials is None:
            return
        timeouts, changed, seen = self._core.timeouts, Latest(None), -1
        node = Resource("/api/v1/nodes", "Nodes", f"metadata.name={connection.node}", state.trim_node)
        async with Session(credentials, timeouts) as session, anyio.create_task_group() as group:
            spread = 0.0 if self._saved == ClusterState() else timeouts.cluster_start_spread
            self._watches = tuple(Watch(session, each, spread) for each in (KUBEVIRTS, node))
            for watch in self._watches:
                group.start_soon(watch.run, name=watch.name)
                group.start_soon(watch.state.follow, lambda _: changed.touch(), name="news")
            api = Api(session, connection.node, self._watches[1].state)
            for task in self._tasks:
                component = Task(task.name, partial(task.run, api))
                group.start_soon(self._core.supervisor.run, component, name=task.name)
            while True:
                seen, _ = await changed.newer(seen)
                self._update(connection.node)
        # anyio ends a group in silence if a library cancels one of its tasks
        raise InternalError("a task that follows the cluster was cancelled")

    def _update(self, node: str) -> None:
        """Put the watched KubeVirt CR and Node into force, and log the parts that are not in force."""
        crs, nodes = (watch.state.get().objects for watch in self._watches)
        before = {*self._lines()}
        now = state.update(self.state.get(), crs, nodes, node)
        self.state.set(now)
        self._core.cluster.set(now.config)
        _log_new([line for line in self._lines() if line not in before])
        self._core.snapshots.touch()

    def _lines(self) -> Iterator[str]:
        """The log lines about the configuration in force."""
        yield from self.state.get().doubts
        yield from (f"{each.message}; {each.hint}" for each in self._list_objections())

    async def save_states(self) -> None:
        """Save each new state to disk, for ever; a failed write is tried again."""
        seen = -1
        while True:
            with anyio.move_on_after(self._core.timeouts.record_write_retry if self._unsaved else None):
                seen, _ = await self.state.newer(seen)
            await self._save(self.state.get())

    async def _save(self, now: ClusterState) -> None:
        if now.objects == self._saved.objects:
            if self._unsaved:  # the state has changed back
                self._unsaved = ""
                self._core.snapshots.touch()
            return
        saved = now._replace(saved=time.time(), doubts=())
        try:
            await threads.call(state.SECTION.save, self._core.root.prefix, saved)
        except KernelRefused as error:
            unsaved = f"the last answers of the API server cannot be saved for a reboot: {error.what}"
            if unsaved != self._unsaved:
                log.event(log.CLUSTER_STATE_NOT_SAVED, error=error.what, hint=error.hint)
            self._unsaved = unsaved
        else:
            self._saved, self._unsaved = saved, ""
        self._core.snapshots.touch()


def _log_new(lines: Sequence[str]) -> None:
    """Log only the first of these lines: logging takes time, and meanwhile all requests wait."""
    for line in lines[:LOGGED]:
        log.event(log.CONFIG_WARNING, text=line)
    if len(lines) > LOGGED:
        more = f"{len(lines) - LOGGED} more lines about the KubeVirt CR: see nodeagent status"
        log.event(log.CONFIG_WARNING, text=more)
