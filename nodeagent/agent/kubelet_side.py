# SPDX-License-Identifier: Apache-2.0
"""The components towards the kubelet: its directories, Allocate, device plugins, CDI files."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.agent.allocate import Allocator
from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.core import Core
from nodeagent.agent.device_plugins import CreateEndpoint, DevicePlugins
from nodeagent.agent.kubelet_view import KubeletView
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.device_plugin import Answers, DeviceList
from nodeagent.kubelet.endpoint import Endpoint, Registrar
from nodeagent.kubelet.socket_dir import SocketDir

RUNTIME = "/run/nodeagent"  # the directory of what lives until the next boot


@dataclass(frozen=True, slots=True)
class KubeletSide:
    """All that speaks with the kubelet. ``registry`` is there where resources are announced by files."""

    directory: SocketDir
    registry: SocketDir | None
    registrar: Registrar
    view: KubeletView
    cdi: CdiFiles
    plugins: DevicePlugins

    @property
    def directories(self) -> tuple[SocketDir, ...]:
        """The directories in which sockets are made."""
        return (self.directory,) if self.registry is None else (self.directory, self.registry)

    @property
    def present(self) -> bool:
        """True if a kubelet is there: one that has ended leaves its socket."""
        return self.directory.kubelet.get() is not None and not self.registrar.refused

    def open(self) -> None:
        """Lock the directories and clear own leftovers.

        :raises AlreadyRunning: if another instance serves this node.
        """
        for directory in self.directories:
            directory.open()

    def close(self) -> None:
        """Release the directories and close the connection to the kubelet."""
        self.view.close()
        for directory in self.directories:
            directory.close()


def build(core: Core) -> KubeletSide:
    """The components, wired, as the settings say at the start."""
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
        core.observer,
        core.offering,
        core.usage,
        core.reservations,
        cdi,
        core.usb_nodes,
        timeouts,
    )
    create = _create_endpoint(registry or directory, registrar, timeouts, announced=registry is not None)
    plugins = DevicePlugins(core.offering, allocator, core.usage, cdi, core.supervisor, create, timeouts)
    core.kubelet.resend_with(plugins)
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
