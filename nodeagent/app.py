# SPDX-License-Identifier: Apache-2.0
"""Builds the components of the daemon, and runs them in the only root task group.

Start: lock the node, listen, scan the host and query PodResources, decide, then serve. Shutdown: stop
processing events, end the endpoints (each in bounded time), remove the sockets, exit.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from nodeagent import __version__
from nodeagent.agent import core
from nodeagent.agent.config_loop import ConfigLoop, LastGood, SpecMerger
from nodeagent.agent.observe import warn_of_old_errors
from nodeagent.agent.recoveries import Recoveries
from nodeagent.agent.reporting import status, systemd
from nodeagent.agent.reporting.problem_log import ProblemLog
from nodeagent.agent.reporting.systemd import StatusLine, Watchdog
from nodeagent.agent.reporting.usage_log import UsageLog
from nodeagent.base import log, log_handlers, process, state, supervise, threads
from nodeagent.base.errors import ConfigError, FatalError
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Component, Heartbeat, Task
from nodeagent.base.systemd import DescriptorStore, Notifier, listening_sockets
from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster.credentials import is_followed
from nodeagent.config import Http, Log, Settings, Sources
from nodeagent.http.routes import local_routes, network_routes
from nodeagent.http.server import Handler, NetworkListener, serve_unix
from nodeagent.kernel.root import Root
from nodeagent.kubelet import socket_dir
from nodeagent.model.host import NODES
from nodeagent.model.status import Status

if TYPE_CHECKING:  # only a few nodes load these modules
    from nodeagent.agent.changing.loop import ChangeLoop
    from nodeagent.agent.changing.requests import ManualRequests
    from nodeagent.agent.cluster.follow import ClusterFollower
    from nodeagent.agent.dra.feature import DraDriver

SetLog = Callable[[Log], None]


class Daemon:
    """All components of the daemon, built in the order of their dependencies."""

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        timeouts: Timeouts,
        set_log: SetLog,
        refused: ConfigError | None = None,
    ) -> None:
        """Build the components.

        ``set_log`` applies new log settings; ``refused`` is the configuration error at start.
        """
        in_force = Latest(settings)
        self.core = core.build(Root(sources.prefix), in_force, timeouts)
        self.kubelet = core.build_kubelet_side(self.core)
        self.config = ConfigLoop(in_force, sources, self.core.watcher, set_log, timeouts, refused)
        self.problem_log = ProblemLog(self.core.snapshots, self.core.offering, timeouts.problems_settle)
        self.notifier = Notifier.from_environ(sources.environ)
        self.watchdog = Watchdog(self.notifier, self.heartbeats, timeouts)
        passed = listening_sockets(sources.environ)
        self.store = DescriptorStore(self.notifier, passed)
        self.network = NetworkListener(in_force, self._routes_by_tcp, timeouts, [sock for _, sock in passed])
        self.changes: ChangeLoop | None = None  # this and the next three: None until the code is loaded
        self.requests: ManualRequests | None = None
        self.cluster: ClusterFollower | None = None
        self.dra: DraDriver | None = None
        self._requested = False  # a manual request has arrived
        self._began = 0.0

    @property
    def event_sources(self) -> Sequence[Component]:
        """Return the components that run before the first scan, so that no change is missed."""
        watcher, timeouts = self.core.watcher, self.core.timeouts
        return (
            Task("inotify", watcher.run),
            Task("directory check", partial(watcher.check, timeouts.directory_check)),
            self.core.events,
            *(
                Task(f"directory {each.path}", partial(each.run, timeouts.kubelet_directory_poll))
                for each in self.kubelet.directories
            ),
        )

    @property
    def components(self) -> Sequence[Component]:
        """Return all other components, except those that only a few nodes need."""
        timeouts, snapshots, usage = self.core.timeouts, self.core.snapshots, self.core.usage
        directory = self.kubelet.directory
        socket = directory.kubelet
        new_kubelet = partial(socket.follow, lambda _: usage.kubelet_changed(), socket.version)
        new_settings = partial(self.core.settings.follow, self._use_settings, self.core.settings.version)
        return (
            self.kubelet.plugins,
            self.core.observer,
            Task("device nodes", self.core.observer.follow_nodes),
            Recoveries(self.core.root, self.core.scan_requests, timeouts.device_recovery),
            usage,
            Task("kubelet", partial(socket.follow, self.kubelet.registrar.note_socket)),
            Task("new kubelet", new_kubelet),
            Task("checkpoint", partial(usage.follow_checkpoint, directory.checkpoint)),
            self.core.offering,
            self.core.releases,
            self.problem_log,
            UsageLog(snapshots, self.core.offering),
            self.kubelet.cdi,
            self.config,
            LastGood(self.core.root, self.core.settings, timeouts.record_write_retry),
            SpecMerger(self.core.settings, self.core.cluster, snapshots),
            Task("settings", new_settings),
            self.network,
            self.watchdog,
            StatusLine(self.notifier, snapshots, self.status, self.watchdog, timeouts),
            Task("status", self._follow_status),
            Task("status socket", self._serve_commands),
        )

    def status(self) -> Status:
        """Return the present Status."""
        uptime = anyio.current_time() - self._began
        http = self.network.status
        return status.collect(
            self.core,
            self.kubelet,
            self.config,
            self.problem_log,
            http,
            self.changes,
            self.cluster,
            self.dra,
            uptime,
        )

    def heartbeats(self) -> Mapping[str, Heartbeat]:
        """Return the heartbeats of the loops that the watchdog checks."""
        loops = (self.core.observer, self.core.offering, self.changes)
        return {loop.name: loop.heartbeat for loop in loops if loop is not None}

    async def run(self) -> None:
        """Run the daemon until SIGTERM or SIGINT.

        :raises FatalError: if another instance serves this node, or the code of this one was removed.
        """
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            log.event(log.STARTED, version=__version__, root=self.core.root.prefix)
            self.kubelet.open()
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._obey, signals, group, name="signals")
                    await self._start(group)
            finally:
                self.kubelet.close()
                self.core.watcher.close()

    async def _start(self, group: TaskGroup) -> None:
        self._keep(self.event_sources, group)
        async with anyio.create_task_group() as first:
            first.start_soon(core.first_scan, self.core)
            first.start_soon(self.core.usage.first)
        self.core.offering.one_turn()
        self._began = anyio.current_time()
        self._keep(self.components, group)
        for task in self._tasks_that_end(group):
            group.start_soon(self.core.supervisor.keep, task.name, task.run, name=task.name)
        await checkpoint()  # every component has started: the status socket listens
        self._report_ready()

    def _report_ready(self) -> None:
        """Log the end of the start, notify systemd, and enable garbage collection."""
        resources = self.core.offering.resources.get()
        devices = sum(len(resource.devices) for resource in resources.values())
        gc.freeze()  # exclude the objects created so far from later collections
        gc.enable()
        log.event(log.READY, resources=len(resources), devices=devices)
        self.notifier.notify("READY=1")

    def _use_settings(self, _: Settings) -> None:
        """Apply new settings: scan the host and query the kubelet immediately, since intervals may have
        changed.
        """
        self.core.scan_requests.add(None)
        self.core.usage.request_soon()

    def _routes_by_tcp(self, http: Http) -> Handler:
        return network_routes(self.status, self.watchdog.problem, self.core.timeouts, http)

    async def _serve_commands(self) -> None:
        core = self.core
        handle = local_routes(self.status, partial(status.in_force, core), self._reply)
        path = core.root.path(core.settings.get().status.socket)
        await serve_unix(path, handle, core.timeouts)

    async def _follow_status(self) -> None:
        """Request a new decision when a part of the Status changes that is not part of the Snapshot."""
        cells: tuple[Latest[Any], ...] = (
            self.core.supervisor.changed,
            self.kubelet.directory.kubelet,
            self.kubelet.plugins.states,
            self.config.read,
            self.watchdog.problems,
        )
        async with anyio.create_task_group() as group:
            for cell in cells:
                group.start_soon(cell.follow, lambda _: self.core.snapshots.touch(), name="status")

    def _tasks_that_end(self, group: TaskGroup) -> Sequence[Task]:
        """Return the tasks that end: two reads, and one task per rare feature that loads its code when it is
        needed.
        """
        core = self.core
        return (
            Task("names", core.names.read_day),
            Task(
                "old errors",
                partial(warn_of_old_errors, core.root, core.snapshots, core.timeouts.device_read),
            ),
            Task("code for changes", partial(self._change_host, group)),
            Task("code for USB", partial(self._prepare_usb, group)),
            Task("code for CDI specifications", partial(self._read_cdi_specs, group)),
            Task("code for the cluster", partial(self._follow_cluster, group)),
            Task("code for DRA", partial(self._serve_dra, group)),
        )

    # Code of rare features: nodes that do not need it start faster, and have no code in memory that writes
    # to sysfs

    async def _change_host(self, group: TaskGroup) -> None:
        prefix, snapshots = self.core.root.prefix, self.core.snapshots
        if not await threads.call(state.LEDGER.exists, prefix):  # else there may be drivers to restore
            while not (snapshots.now.spec.changes_host or self._requested):
                await snapshots.newer(snapshots.version)
        await _load("nodeagent.agent.changing.loop", "nodeagent.agent.changing.requests")
        from nodeagent.agent.changing import loop, requests

        components = loop.components(self.core)
        self.changes = components[0]
        self.requests = requests.ManualRequests(self.core, self.changes.runner)
        self._keep(components, group)
        self.core.snapshots.touch()  # wakes ``_reply``

    async def _reply(self, question: bytes, asker: int) -> dict[str, Any]:
        """Return the response to a manual request of process ``asker``, once the code for it is loaded."""
        self._requested = True
        self.core.snapshots.touch()  # wakes ``_change_host``
        while self.requests is None:
            await self.core.snapshots.newer(self.core.snapshots.version)
        return await self.requests.reply(question, asker)

    async def _prepare_usb(self, group: TaskGroup) -> None:
        prefix, snapshots = self.core.root.prefix, self.core.snapshots
        # else there may be device nodes to return to root
        if not await threads.call(state.USB.exists, prefix):
            await snapshots.until(lambda spec: NODES in spec.node_paths)
        await _load("nodeagent.agent.usb")
        from nodeagent.agent import usb

        self._keep(usb.components(self.core), group)

    async def _read_cdi_specs(self, group: TaskGroup) -> None:
        await self.core.snapshots.until(lambda spec: bool(spec.cdi_kinds))
        await _load("nodeagent.agent.cdi_specs")
        from nodeagent.agent import cdi_specs

        self._keep(cdi_specs.components(self.core), group)

    async def _follow_cluster(self, group: TaskGroup) -> None:
        await self.core.snapshots.until(lambda spec: is_followed(spec.following))
        await _load("nodeagent.agent.cluster.follow")
        from nodeagent.agent.cluster import follow

        self.cluster = follow.follower(self.core, self.status)
        self._keep([self.cluster], group)

    async def _serve_dra(self, group: TaskGroup) -> None:
        snapshots = self.core.snapshots
        if not await threads.call(state.has_claims, self.core.root.prefix):  # else pods have devices by DRA
            if not snapshots.now.spec.uses_dra:
                self.store.drop_all()  # those of a previous process that served DRA
                registry = self.core.settings.get().kubelet.plugins_registry_dir
                socket_dir.remove_dra_socket(self.core.root.path(registry))
            await snapshots.until(lambda spec: spec.uses_dra)
        await _load("nodeagent.agent.dra.feature")
        from nodeagent.agent.dra import feature

        self.dra = feature.DraDriver(self.core, self.store)
        self._keep(self.dra.components, group)

    def _keep(self, components: Sequence[Component], group: TaskGroup) -> None:
        for component in components:
            group.start_soon(self.core.supervisor.run, component, name=component.name)

    async def _obey(self, signals: AsyncIterator[signal.Signals], group: TaskGroup) -> None:
        async for number in signals:
            if number == signal.SIGHUP:
                limit = self.core.timeouts.config_reload
                group.start_soon(systemd.reload, self.notifier, self.config.reload, limit, name="reload")
                continue
            log.event(log.STOPPING, cause=signal.Signals(number).name)
            self.notifier.notify("STOPPING=1")
            self.kubelet.plugins.shorten_grace(self.core.timeouts.allocate_at_shutdown)
            group.cancel_scope.cancel()
            return


async def _load(*modules: str) -> None:
    """Import the modules in a thread, then free the memory that importing has used."""
    for module in modules:
        await threads.call(importlib.import_module, module)
    process.release_memory()


def run(
    settings: Settings,
    sources: Sources,
    timeouts: Timeouts,
    set_log: SetLog,
    refused: ConfigError | None = None,
) -> None:
    """Run the daemon in its own event loop until it is stopped.

    :raises FatalError: if another instance serves this node, or the code of this one was removed.
    """

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(log_handlers.handle_loop_error)
        await Daemon(settings, sources, timeouts, set_log, refused).run()

    try:
        anyio.run(main)
    except BaseExceptionGroup as group:
        if (one := supervise.only_error(group, FatalError)) is None:
            raise
        raise one from group


def leave(code: int) -> None:
    """Exit the process immediately, without waiting for threads that sleep in the kernel."""
    os._exit(code)
