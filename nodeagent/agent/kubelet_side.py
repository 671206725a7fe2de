# SPDX-License-Identifier: Apache-2.0
"""The components towards the kubelet: its directories, holders, granting, device plugins, CDI files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.core import Core
from nodeagent.agent.deviceplugins import DevicePlugins
from nodeagent.agent.granting import Granting
from nodeagent.agent.holders import Holders
from nodeagent.kubelet import podresources
from nodeagent.kubelet.deviceplugin.life import Way
from nodeagent.kubelet.deviceplugin.registration import RegisterWay, Registrar
from nodeagent.kubelet.deviceplugin.socketdir import SocketDir
from nodeagent.model.allocation import Holder
from nodeagent.model.shares import DirectoryShare


@dataclass(frozen=True, slots=True)
class PodResources:
    """The kubelet's PodResources API at a socket."""

    path: str

    async def holders(self) -> Mapping[str, Holder]:
        """Device id → holder. :raises KubeletUnavailable: if there is no answer in time."""
        return await podresources.holders(self.path)

    def born(self) -> float | None:
        """When the kubelet made the socket, by the clock of then; None without one."""
        return podresources.born(self.path)


@dataclass(frozen=True, slots=True)
class KubeletSide:
    """All that speaks with the kubelet. ``registry`` is there where resources are announced by files."""

    directory: SocketDir
    registry: SocketDir | None
    registrar: Registrar
    holders: Holders
    cdi: CdiFiles
    plugins: DevicePlugins

    @property
    def directories(self) -> tuple[SocketDir, ...]:
        """The directories in which sockets are made."""
        return (self.directory,) if self.registry is None else (self.directory, self.registry)

    def status(self) -> DirectoryShare:
        """The kubelet's socket, and whether it is there."""
        return DirectoryShare(self.directory.kubelet_path, self.directory.kubelet.get() is not None)

    def open(self) -> None:
        """Lock the directories and clear own leftovers.

        :raises AlreadyRunning: if another instance serves this node.
        """
        for directory in self.directories:
            directory.open()

    def close(self) -> None:
        """Give the directories back."""
        for directory in self.directories:
            directory.close()


def build(core: Core) -> KubeletSide:
    """The components, wired, as the settings say at the start."""
    root, settings = core.root, core.settings.get()
    directory = SocketDir(root.path(settings.kubelet.device_plugin_dir), core.watcher)
    registry = None
    if settings.kubelet.registration != "classic":
        path = root.path(settings.kubelet.plugins_registry_dir)
        registry = SocketDir(path, core.watcher, exclusive=False)
    registrar = Registrar(directory.kubelet_path)
    kubelet = PodResources(root.path(settings.kubelet.pod_resources))
    holders = Holders(kubelet, core.snapshots, core.reservations, core.settings, core.releases, core.observer)
    cdi = CdiFiles(root.path(settings.cdi.spec_dir), core.snapshots, core.offering)
    granting = Granting(core.observer, core.offering, cdi, core.reservations, core.settings)
    way = _way(directory, registry, registrar)
    plugins = DevicePlugins(core.offering, granting, cdi, core.supervisor, way)
    return KubeletSide(directory, registry, registrar, holders, cdi, plugins)


def _way(directory: SocketDir, registry: SocketDir | None, registrar: Registrar) -> Way:
    if registry is None:
        return RegisterWay(directory, registrar)
    from nodeagent.kubelet.plugin_watcher import AnnounceWay  # here: few nodes register that way

    return AnnounceWay(registry, registrar)
