# SPDX-License-Identifier: Apache-2.0
"""Builds the shared parts of the daemon in the order of their dependencies, and makes the first scan.

``Core`` holds what all other components share: the Snapshot, the scans of the host, and the table of which
pod uses which device. A feature takes the Core and returns its components. ``KubeletSide`` has the components
that communicate with the kubelet. ``app`` calls this module, and so does ``agent.changing.requests`` for a
command when no daemon runs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nodeagent.agent import recoveries
from nodeagent.agent.allocate import Allocator
from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.device_plugins import CreateEndpoint, DevicePlugins
from nodeagent.agent.kubelet_view import KubeletView
from nodeagent.agent.names import NameKeeper
from nodeagent.agent.observe import Observer
from nodeagent.agent.offering import Offering
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.usage import Usage
from nodeagent.base import log, state, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Supervisor
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.cluster.credentials import is_followed
from nodeagent.config import Settings
from nodeagent.kernel.events import KernelEvents
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.kubelet.device_plugin import Answers, DeviceList
from nodeagent.kubelet.endpoint import Endpoint, Registrar
from nodeagent.kubelet.socket_dir import SocketDir
from nodeagent.model.kubevirt import ClusterConfig
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import merge

if TYPE_CHECKING:  # few nodes load it
    from nodeagent.agent.usb import UsbNodes

RUNTIME = "/run/nodeagent"  # the directory of files that live until the next boot


@dataclass(frozen=True, slots=True)
class Core:
    """The shared parts of one daemon."""

    root: Root
    settings: Latest[Settings]
    timeouts: Timeouts
    cluster: Latest[ClusterConfig]
    watcher: DirectoryWatcher
    supervisor: Supervisor
    snapshots: Snapshots
    scan_requests: ScanRequests
    events: KernelEvents
    observer: Observer
    names: NameKeeper
    reservations: ReservationBook
    releases: Releases
    kubelet: KubeletView
    usage: Usage
    offering: Offering
    usb_nodes: Latest[UsbNodes | None]  # None until the code for USB devices is loaded


def build(root: Root, settings: Latest[Settings], timeouts: Timeouts) -> Core:
    """Build the shared parts."""
    watcher, scan_requests = DirectoryWatcher(root.prefix), ScanRequests()
    cluster = Latest(_load_cluster_config(root, settings.get()))
    cr, labels = cluster.get()
    spec = merge.merge(settings.get().configuration, cr, labels)
    snapshots = Snapshots(Snapshot(spec=spec))
    events = KernelEvents(root, watcher, scan_requests, timeouts)
    chosen = settings.get().configuration.discovery.pci_ids
    names = NameKeeper(root, chosen)
    observer = Observer(root, snapshots, scan_requests, events, settings, names, timeouts)
    releases = Releases(settings)
    releases.add_reader(observer)
    reservations = ReservationBook(snapshots, timeouts)
    kubelet = KubeletView(root, settings.get(), snapshots, timeouts)
    usage = Usage(kubelet, snapshots, reservations, observer, releases, settings, timeouts)
    return Core(
        root,
        settings,
        timeouts,
        cluster,
        watcher,
        Supervisor(timeouts),
        snapshots,
        scan_requests,
        events,
        observer,
        names,
        reservations,
        releases,
        kubelet,
        usage,
        Offering(snapshots, releases, timeouts),
        Latest(None),
    )


def _load_cluster_config(root: Root, settings: Settings) -> ClusterConfig:
    """The cluster configuration that the previous daemon saved: every decision needs it."""
    if not is_followed(settings.configuration.following):
        return ClusterConfig()
    from nodeagent.agent.cluster.state import SECTION  # here: most nodes use no API server

    return SECTION.peek(root.prefix).config  # the node is not locked yet: a damaged file is not moved


@dataclass(frozen=True, slots=True)
class KubeletSide:
    """The parts that talk to the kubelet. ``registry``: plugins_registry, if it is used for registration."""

    directory: SocketDir
    registry: SocketDir | None
    registrar: Registrar
    view: KubeletView
    cdi: CdiFiles
    plugins: DevicePlugins

    @property
    def directories(self) -> tuple[SocketDir, ...]:
        """The directories in which plugin sockets are created."""
        return (self.directory,) if self.registry is None else (self.directory, self.registry)

    @property
    def present(self) -> bool:
        """True if a kubelet runs; a kubelet that has ended leaves its socket behind."""
        return self.directory.kubelet.get() is not None and not self.registrar.refused

    def open(self) -> None:
        """Lock the directories, and delete sockets that a previous daemon left.

        :raises AlreadyRunning: if another instance serves this node.
        """
        for directory in self.directories:
            directory.open()

    def close(self) -> None:
        """Release the directories and close the connection to the kubelet."""
        self.view.close()
        for directory in self.directories:
            directory.close()


def build_kubelet_side(core: Core) -> KubeletSide:
    """Build the components that communicate with the kubelet, from the settings at the start."""
    root, settings, timeouts = core.root, core.settings.get(), core.timeouts
    directory = SocketDir(root.path(settings.kubelet.device_plugin_dir), core.watcher, own=root.path(RUNTIME))
    registry = None
    if settings.kubelet.registration != "classic":
        path = root.path(settings.kubelet.plugins_registry_dir)
        registry = SocketDir(path, core.watcher, exclusive=False)
    registrar = Registrar(directory.kubelet_path, timeouts)
    cdi = CdiFiles(root.path(settings.cdi.spec_dir), core.snapshots, core.offering)
    allocator = Allocator(
        root,
        core.observer.recheck,
        core.offering,
        core.usage,
        core.reservations,
        cdi,
        core.usb_nodes,
        timeouts,
    )
    create = _create_endpoint(registry or directory, registrar, timeouts, announced=registry is not None)
    plugins = DevicePlugins(core.offering, allocator, core.usage, cdi, core.supervisor, create, timeouts)
    core.kubelet.resend_list = plugins.send_again
    return KubeletSide(directory, registry, registrar, core.kubelet, cdi, plugins)


def _create_endpoint(
    directory: SocketDir, registrar: Registrar, timeouts: Timeouts, *, announced: bool
) -> CreateEndpoint:
    kind = Endpoint
    if announced:
        from nodeagent.kubelet.plugin_watcher import AnnouncedEndpoint  # here: few nodes register that way

        kind = AnnouncedEndpoint

    def create(resource: str, devices: DeviceList, answers: Answers, changed: Latest[None]) -> Endpoint:
        return kind(resource, devices, answers, directory, registrar, changed, timeouts)

    return create


async def first_scan(core: Core) -> None:
    """Scan the host for the first time, as soon as no change can be missed any more."""
    if not core.watcher.has_instance:
        error = "the kernel refuses an inotify instance; raise fs.inotify.max_user_instances"
        seconds = f"{core.timeouts.directory_check:g}"
        log.event(log.EVENTS_UNAVAILABLE, source="inotify", seconds=seconds, error=error)
    await core.events.wait_until_listening(core.settings.get().timing.resync)
    await recoveries.restore(core.root, core.scan_requests)
    await first_specs(core)
    with contextlib.suppress(KernelRefused):  # the component for USB devices reads it once more
        await _lent_before(core)
    with contextlib.suppress(KernelRefused):  # the DRA driver reads it once more
        await _load_claims(core)
    await core.observer.scan()


async def first_specs(core: Core) -> None:
    """Read the CDI files that rules name, before the first scan."""
    if core.snapshots.now.spec.cdi_kinds:
        from nodeagent.agent import cdi_specs  # here: few nodes have rules for CDI devices

        spec, limit = core.snapshots.now.spec, core.timeouts.cdi_directory_read
        core.scan_requests.specs = await cdi_specs.first(core.root, spec, limit)


async def _lent_before(core: Core) -> None:
    """Load the previous daemon's record of USB devices in pods, which must not be listed as free."""
    if await threads.call(state.USB.exists, core.root.prefix):
        from nodeagent.agent import usb  # here: few nodes have USB devices in pods

        loans = await threads.call(usb.SECTION.peek, core.root.prefix)
        core.snapshots.publish(replace(core.snapshots.now, loans=loans))


async def _load_claims(core: Core) -> None:
    """Load the record of prepared claims: the first list must not show their devices as free."""
    if await threads.call(state.has_claims, core.root.prefix):
        from nodeagent.agent.dra import record  # here: few nodes have claims

        core.usage.set_claims(await threads.call(record.load, core.root.prefix))
