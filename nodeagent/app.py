# SPDX-License-Identifier: Apache-2.0
"""Builds everything and owns the only root task group: the daemon from its start to its end.

Order of the start: lock the node, look at the host and ask who holds what, decide, then serve. Order of the
end: take no more events, end the endpoints (each in bounded time), remove the sockets, exit.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from nodeagent import __version__
from nodeagent.agent import releases
from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.config_loop import ConfigLoop
from nodeagent.agent.deviceplugins import DevicePlugins, ResourceAnswers
from nodeagent.agent.holders import HoldersLoop
from nodeagent.agent.observe import Observer
from nodeagent.agent.offering import Offering
from nodeagent.agent.reservations import Reservations
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.tell import status
from nodeagent.base import jsonsocket, log, memory, threads
from nodeagent.base.errors import AlreadyRunning
from nodeagent.base.latest import Latest
from nodeagent.base.sdnotify import Notifier
from nodeagent.base.supervise import Supervisor
from nodeagent.base.watching import Watcher
from nodeagent.config import Log, Settings, Timing
from nodeagent.kernel.root import Root
from nodeagent.kubelet import podresources
from nodeagent.kubelet.deviceplugin.endpoint import Endpoint
from nodeagent.kubelet.deviceplugin.listing import Listing
from nodeagent.kubelet.deviceplugin.registration import Registrar
from nodeagent.kubelet.deviceplugin.socketdir import SocketDir
from nodeagent.model import allocation
from nodeagent.model.desired import Desired
from nodeagent.model.snapshot import Snapshot

if TYPE_CHECKING:
    from nodeagent.agent.changing.feature import Changing

HOLDERS_AT_START = 1.0  # seconds that the first list waits for the kubelet to say what is held
HURRY = 0.5  # seconds for an Allocate in flight when the process ends

SetLog = Callable[[Log], None]


class Agent:
    """All parts of the daemon, wired."""

    def __init__(
        self,
        root: Root,
        settings: Settings,
        flags: Mapping[str, str],
        environ: Mapping[str, str],
        set_log: SetLog = lambda _: None,
    ) -> None:
        """``set_log`` is told other settings of the log."""
        self.began = time.monotonic()
        self.root = root
        self.snapshots = Snapshots(Snapshot())
        self.changes: Changing | None = None
        self.wake: Latest[None] = Latest(None, self._publish)
        self.supervisor = Supervisor()
        self.watcher = Watcher()
        self.notifier = Notifier.from_environ(environ)
        self.desire = ConfigLoop(settings, root.prefix, flags, environ, self.wake.touch, set_log)
        self.directory = SocketDir(root.path(settings.kubelet.device_plugin_dir), self.watcher)
        self.registrar = Registrar(self.directory.kubelet_path)
        self.registry = self._registry(settings)
        self.observe = Observer(
            root,
            self.watcher,
            resync=lambda: self._timing().resync,
            node_paths=settings.desired.node_paths,
            on_change=self.wake.touch,
        )
        self.reservations = Reservations(self.wake.touch)
        pod_resources = root.path(settings.kubelet.pod_resources)
        self.allocations = HoldersLoop(
            functools.partial(podresources.holders, pod_resources),
            functools.partial(podresources.born, pod_resources),
            self.reservations,
            timing=self._timing,
            on_change=self.wake.touch,
            before_release=self.observe.refresh,
        )
        self.removals = _Awaited(self.allocations)
        self.reconcile = Offering(
            self.wake,
            self.observe.host,
            self.desire.cell,
            self.observe.names,
            self.allocations.cell,
            self.reservations.settling,
        )
        self.plugins = DevicePlugins(
            self.observe,
            self.reconcile,
            CdiFiles(root.path(settings.cdi_spec_dir), lambda: self.reconcile.decision),
            self.supervisor,
            self._endpoint,
            self.allocations.give,
        )

    async def run(self) -> None:
        """The daemon's whole life; returns after SIGTERM or SIGINT.

        Raises AlreadyRunning if another instance serves this node.
        """
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            await self._live(signals)

    async def _live(self, signals: AsyncIterator[signal.Signals]) -> None:
        log.event(log.STARTED, version=__version__, root=self.root.prefix)
        self.directory.open()
        if self.registry is not None:
            self.registry.open()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._obey_signals, signals, group, name="signals")
                await self._start(group)
        finally:
            self.directory.close()
            if self.registry is not None:
                self.registry.close()
            self.watcher.close()

    async def _start(self, group: TaskGroup) -> None:
        self.desire.watch(self.watcher)
        watchers = [
            ("inotify", self.watcher.run),
            ("refused watches", self.watcher.keep_trying),
            ("kernel events", self.observe.watch),
            ("device-plugins directory", self.directory.run),
        ]
        if self.registry is not None:
            watchers.append(("plugins_registry directory", self.registry.run))
        for name, run in watchers:
            group.start_soon(self.supervisor.keep, name, run, name=name)
        async with anyio.create_task_group() as first:
            first.start_soon(self._first_look)
            first.start_soon(self._first_holders)
        self.reconcile.one_turn()
        for name, run in (
            ("plugins", self.plugins.run),
            ("observe", self.observe.run),
            ("allocations", self.allocations.run),
            ("configuration", self.desire.run),
            ("reconcile", self.reconcile.run),
            ("effects", self._change_host),
            *self._followers(),
            ("status socket", self._serve_status),
            ("systemd", self._feed_watchdog),
        ):
            group.start_soon(self.supervisor.keep, name, run, name=name)
        self._tell_of_the_host()
        resources = self.reconcile.resources.get()
        devices = sum(len(resource.devices) for resource in resources.values())
        memory.end_start()
        log.event(log.READY, resources=len(resources), devices=devices)
        self.notifier.ready()

    def _followers(self) -> Sequence[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """What follows the cells of others: a kubelet is new only if it comes after the start."""
        kubelet, checkpoint = self.directory.kubelet, self.directory.checkpoint
        allocations, observe, awaited = self.allocations, self.observe, self.reconcile.awaited
        partial = functools.partial
        return (
            ("kubelet", partial(kubelet.follow, self.registrar.seen)),
            (
                "new kubelet",
                partial(kubelet.follow, lambda _: allocations.kubelet_changed(), kubelet.version),
            ),
            ("checkpoint", partial(checkpoint.follow, lambda _: allocations.wake(), checkpoint.version)),
            ("nodes", partial(self.desire.cell.follow, lambda wanted: observe.set_nodes(wanted.node_paths))),
            ("settings", partial(self.desire.cell.follow, self._look_again, self.desire.cell.version)),
            ("awaited", partial(awaited.follow, lambda ids: allocations.await_releases(bool(ids)))),
            ("releases", partial(releases.while_any, awaited, self._pause, observe.refresh)),
        )

    def _timing(self) -> Timing:
        return self.desire.settings.timing

    def _pause(self) -> float:
        return self._timing().holders

    def _look_again(self, _: Desired) -> None:
        """After other settings: who waits, does so by the old ones."""
        self.observe.wake(None)
        self.allocations.wake()

    def _tell_of_the_host(self) -> None:
        """Say once what keeps the whole node from giving devices away."""
        host = self.observe.host.get()
        if host.functions and not host.iommu:
            log.event(log.NO_IOMMU, hint="switch it on in the firmware and with intel_iommu=on")
        elif host.functions and not host.vfio_loaded:
            log.event(log.NO_VFIO, hint="load it with: modprobe vfio-pci")

    async def _first_look(self) -> None:
        await self.observe.listening()
        await self.observe.first()

    async def _first_holders(self) -> None:
        with anyio.move_on_after(HOLDERS_AT_START):
            await self.allocations.one_turn()

    async def _change_host(self) -> None:
        """Change the host as the operator wishes; a node without such wishes never loads the code for it."""
        seen = -1
        while self.changes is None:
            if self.desire.cell.get().changes_host:
                feature = await threads.call(_feature)
                scans = _Scans(self.observe)
                self.changes = feature(self.root, self.snapshots, scans, self.reservations, self.removals)
                self._publish()
            else:
                seen, _ = await self.desire.cell.newer(seen)
        probe = self.changes.probe
        async with anyio.create_task_group() as group:
            for part in self.changes.components:
                group.start_soon(part.run, name=part.name)
            await releases.while_any(self.removals.ids, self._pause, lambda _: probe.reprobe())

    def _publish(self) -> None:
        """The parts of the Snapshot that have cells of their own still."""
        if self.changes is not None:
            settling, withdrawn = self.reservations.settling.get(), self.reservations.withdrawn.get()
            self.snapshots.publish(
                replace(
                    self.snapshots.now,
                    host=self.observe.host.get(),
                    desired=self.desire.cell.get(),
                    names=self.observe.names.get(),
                    allocations=self.allocations.cell.get(),
                    reservations=allocation.Reservations(settling, withdrawn),
                )
            )

    def _registry(self, settings: Settings) -> SocketDir | None:
        """The directory for registration, where that way was chosen."""
        if settings.kubelet.registration == "classic":
            return None
        path = self.root.path(settings.kubelet.plugins_registry_dir)
        return SocketDir(path, self.watcher, exclusive=False)

    def _endpoint(self, name: str, listing: Listing, answers: ResourceAnswers) -> Endpoint:
        if self.registry is not None:
            from nodeagent.kubelet.plugin_watcher import RegistryEndpoint  # here: few nodes register that way

            return RegistryEndpoint(name, listing, answers, self.registry, self.registrar)
        return Endpoint(name, listing, answers, self.directory, self.registrar)

    async def _serve_status(self) -> None:
        path = self.root.path(self.desire.settings.status_socket)
        hint = "make its directory writable, or choose another with --status-socket"
        await jsonsocket.serve(path, lambda: status.document(self), hint)

    async def _feed_watchdog(self) -> None:
        interval = self.notifier.watchdog_interval
        while interval is not None:
            self.notifier.alive()
            await anyio.sleep(interval)

    async def _obey_signals(self, signals: AsyncIterator[signal.Signals], group: TaskGroup) -> None:
        async for number in signals:
            if number == signal.SIGHUP:
                self.desire.wake()
                continue
            log.event(log.STOPPING, why=signal.Signals(number).name)
            self.notifier.stopping()
            self.plugins.hurry(HURRY)
            group.cancel_scope.cancel()
            return


class _Scans:
    """The scans of the side that changes the host."""

    def __init__(self, observe: Observer) -> None:
        self.wake = observe.wake
        self.rescan = observe.look_at


class _Awaited:
    """What the side that changes the host waits for."""

    def __init__(self, allocations: HoldersLoop) -> None:
        self.ids: Latest[frozenset[str]] = Latest(frozenset())
        self._allocations = allocations

    def set(self, by: str, ids: frozenset[str]) -> None:
        """These ids, and no others, are waited for."""
        self.ids.set(ids)
        self._allocations.await_releases(bool(ids), by)


def _feature() -> Callable[..., Changing]:
    from nodeagent.agent.changing.feature import feature

    return feature


def run(
    root: Root,
    settings: Settings,
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    set_log: SetLog,
) -> None:
    """Run the daemon in an event loop of its own until it is told to stop.

    Raises AlreadyRunning if another instance serves this node, at the start or when the directory is new.
    """

    async def main() -> None:
        await Agent(root, settings, flags, environ, set_log).run()

    try:
        anyio.run(main)
    except BaseExceptionGroup as group:
        # The task group wraps what ended it; who reads the message wants the one thing inside.
        taken, rest = group.split(AlreadyRunning)
        if taken is None or rest is not None:
            raise
        raise _first_of(taken) from group


def _first_of(group: BaseExceptionGroup[AlreadyRunning]) -> AlreadyRunning:
    inner = group.exceptions[0]
    return _first_of(inner) if isinstance(inner, BaseExceptionGroup) else inner


def leave(code: int) -> None:
    """End the process now: a thread may still sleep in the kernel, and must not be waited for."""
    os._exit(code)
