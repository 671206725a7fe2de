# SPDX-License-Identifier: Apache-2.0
"""The list of the daemon's components, and the only root task group: from its start to its end.

Order of the start: lock the node, listen, scan the host and ask who holds what, decide, then serve. Order of
the end: take no more events, end the endpoints (each in bounded time), remove the sockets, exit.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from nodeagent import __version__
from nodeagent.agent import core, followers, kubelet_side
from nodeagent.agent.config_loop import ConfigLoop, Desire
from nodeagent.agent.features import FEATURES, LateFeature
from nodeagent.agent.last_good import LastGood
from nodeagent.agent.observe import warn_of_old_errors
from nodeagent.agent.recoveries import Recoveries
from nodeagent.agent.tell import status, systemd
from nodeagent.agent.tell.noting import Remarks
from nodeagent.agent.tell.start import tell_that_it_is_ready
from nodeagent.agent.tell.status import Teller
from nodeagent.agent.tell.systemd import StatusLine, Watchdog
from nodeagent.base import log, log_handlers, supervise
from nodeagent.base.errors import ConfigError, MustEnd
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Component, HasHeartbeat, Heartbeat, Task
from nodeagent.base.systemd import Notifier, listening_sockets
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Http, Log, Settings, Sources
from nodeagent.http import listeners
from nodeagent.http.listeners import NetworkListener
from nodeagent.http.routes import LocalRoutes, NetworkRoutes
from nodeagent.http.server import Handler
from nodeagent.kernel.root import Root

SetLog = Callable[[Log], None]


class Daemon:
    """All components, listed."""

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        timeouts: Timeouts,
        set_log: SetLog,
        refused: ConfigError | None = None,
    ) -> None:
        """``set_log`` is told other settings of the log; ``refused`` is as ConfigLoop wants it."""
        in_force = Latest(settings)
        self.core = core.build(Root(sources.prefix), in_force, timeouts)
        self.kubelet = kubelet_side.build(self.core)
        self.config = ConfigLoop(in_force, sources, self.core.watcher, set_log, timeouts, refused)
        self.notifier = Notifier.from_environ(sources.environ)
        self.passed = listening_sockets(sources.environ)
        self.features = [LateFeature(self.core, feature) for feature in FEATURES]

    @property
    def ears(self) -> Sequence[Component]:
        """What listens before the first scan, so that no change is missed."""
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
        """All others."""
        timeouts = self.core.timeouts
        return (
            self.kubelet.plugins,
            self.core.observer,
            Recoveries(self.core.root, self.core.wakes, timeouts.device_recovery),
            self.core.names,
            self.core.usage,
            self.core.offering,
            self.core.releases,
            Remarks(self.core.snapshots, self.core.offering, timeouts.problems_settle),
            self.kubelet.cdi,
            self.config,
            LastGood(self.core.root, self.core.settings, timeouts.record_write_retry),
            self.core.news,
            Desire(self.core.settings, self.core.cluster, self.core.snapshots),
            *followers.of(self.core, self.kubelet),
            *self.features,
            Task(
                "old errors",
                partial(warn_of_old_errors, self.core.root, self.core.snapshots, timeouts.device_read),
            ),
        )

    async def run(self) -> None:
        """The daemon's whole life; returns after SIGTERM or SIGINT.

        :raises MustEnd: if another instance serves this node, or the code of this one is gone.
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
        self._keep(self.ears, group)
        async with anyio.create_task_group() as first:
            first.start_soon(core.first_scan, self.core)
            first.start_soon(self.core.usage.first)
        self.core.offering.one_turn()
        components = self.components
        timeouts = self.core.timeouts
        watchdog = Watchdog(self.notifier, self.heartbeats, timeouts)

        def routes(http: Http) -> Handler:
            return NetworkRoutes(teller.status, watchdog.problem, timeouts, http).handle

        network = NetworkListener(self.core.settings, routes, timeouts, self.passed)
        teller = Teller(self.core, [self.kubelet, network, *components])
        self._begin_news(teller, watchdog)
        for_systemd = (watchdog, StatusLine(self.notifier, self.core.news, watchdog, timeouts))
        local = Task("status socket", partial(self._serve_commands, teller))
        self._keep([*components, network, *for_systemd, local], group)
        await checkpoint()  # all have taken their first step: who is told that it is ready may ask at once
        tell_that_it_is_ready(self.core.offering.resources.get(), self.notifier)

    async def _serve_commands(self, teller: Teller) -> None:
        core = self.core
        routes = LocalRoutes(teller.status, partial(status.in_force, core), core.requests.reply)
        path = core.root.path(core.settings.get().status.socket)
        await listeners.serve_unix(path, routes.handle, core.timeouts)

    def heartbeats(self) -> Mapping[str, Heartbeat]:
        """Of the loops that must turn; the one that changes the host is loaded late."""
        late = [each for feature in self.features for each in feature.components]
        loops = (self.core.observer, self.core.offering, *late)
        return {each.name: each.heartbeat for each in loops if isinstance(each, HasHeartbeat)}

    def _begin_news(self, teller: Teller, watchdog: Watchdog) -> None:
        core, kubelet = self.core, self.kubelet
        cells = (
            core.snapshots,
            core.supervisor.changed,
            kubelet.directory.kubelet,
            kubelet.plugins.states,
            self.config.read,
            watchdog.problems,
        )
        core.news.begin(teller.status, cells)

    def _keep(self, components: Sequence[Component], group: TaskGroup) -> None:
        for component in components:
            group.start_soon(self.core.supervisor.run, component, name=component.name)

    async def _obey(self, signals: AsyncIterator[signal.Signals], group: TaskGroup) -> None:
        async for number in signals:
            if number == signal.SIGHUP:
                limit = self.core.timeouts.config_reload
                group.start_soon(systemd.reload, self.notifier, self.config.reload, limit, name="reload")
                continue
            log.event(log.STOPPING, why=signal.Signals(number).name)
            self.notifier.stopping()
            self.kubelet.plugins.shorten_grace(self.core.timeouts.allocate_at_shutdown)
            group.cancel_scope.cancel()
            return


def run(
    settings: Settings,
    sources: Sources,
    timeouts: Timeouts,
    set_log: SetLog,
    refused: ConfigError | None = None,
) -> None:
    """Run the daemon in an event loop of its own until it is told to stop.

    :raises MustEnd: if another instance serves this node, or the code of this one is gone.
    """

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(log_handlers.handle_loop_error)
        await Daemon(settings, sources, timeouts, set_log, refused).run()

    try:
        anyio.run(main)
    except BaseExceptionGroup as group:
        if (one := supervise.alone(group, MustEnd)) is None:
            raise
        raise one from group


def leave(code: int) -> None:
    """End the process now: a thread may still sleep in the kernel, and must not be waited for."""
    os._exit(code)
