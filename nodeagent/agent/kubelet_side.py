# SPDX-License-Identifier: Apache-2.0
"""The components towards the kubelet: its directories, holders, granting, device plugins, CDI files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nodeagent.agent.asking import Asking
from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.closing import Closing
from nodeagent.agent.core import Core
from nodeagent.agent.deviceplugins import DevicePlugins
from nodeagent.agent.granting import Granting
from nodeagent.agent.holders import Holders
from nodeagent.agent.inquiry import Inquiry
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet import podresources
from nodeagent.kubelet.checkpoint import Checkpoint, CheckpointFile
from nodeagent.kubelet.deviceplugin.life import Way
from nodeagent.kubelet.deviceplugin.registration import RegisterWay, Registrar
from nodeagent.kubelet.deviceplugin.socketdir import CHECKPOINT, SocketDir
from nodeagent.kubelet.podresources import Birth, PodReader, VirtHandler
from nodeagent.model.allocation import PodList
from nodeagent.model.shares import DirectoryShare

RUNTIME = "/run/nodeagent"  # the directory of what lives until the next boot


class Lists(Protocol):
    """What the kubelet is told of our devices."""

    def send_again(self) -> bool:
        """Send one list once more; False if there is none that the kubelet has."""
        ...


class PodResources:
    """What a kubelet tells of holders: its PodResources API at a socket, and its checkpoint."""

    def __init__(self, path: str, proc: str, plugins: str, snapshots: Snapshots, timeouts: Timeouts) -> None:
        self._path = path
        self._proc = proc
        self._birth: Birth | None = None
        self._snapshots = snapshots
        self._virt_handler = VirtHandler(plugins)
        limit, idle = timeouts.pod_resources_rpc, timeouts.pod_resources_idle
        self._reader = PodReader(path, self._virt_handler, limit, idle)
        pods = Path(path).parent.with_name("pods")  # below the kubelet's root directory, as the socket is
        self._checkpoint = CheckpointFile(f"{plugins}/{CHECKPOINT}", str(pods))
        self._lists: Lists | None = None

    async def pods(self) -> PodList:
        """Who holds what. :raises KubeletUnavailable: if there is no answer in time.

        What the KubeVirt CR leaves to virt-handler is known to be its own, whatever its sockets say.
        """
        self._virt_handler.learn(rule.name for rule in self._snapshots.now.desired.foreign.values())
        return await self._reader.pods()

    def close(self) -> None:
        """Ask no more."""
        self._reader.close()

    def checkpoint(self) -> Checkpoint:
        """What the checkpoint says. Blocks on a file."""
        checkpoint = self._checkpoint.read()
        self._virt_handler.learn(each.resource for each in checkpoint.entries if each.device_id.isdecimal())
        return checkpoint

    def write_with(self, lists: Lists) -> None:
        """The kubelet writes its checkpoint when it gets one of these."""
        self._lists = lists

    def write_anew(self) -> bool:
        """Have the kubelet write it; False if it has no list of ours."""
        return self._lists is not None and self._lists.send_again()

    def birth(self) -> Birth | None:
        """When the kubelet was started; None without one."""
        self._birth = podresources.birth(self._path, self._proc, self._birth)
        return self._birth

    def expected(self) -> bool:
        """True if a kubelet that is starting can be expected to answer: there is a place for its socket."""
        return Path(self._path).parent.is_dir()


@dataclass(frozen=True, slots=True)
class KubeletSide:
    """All that speaks with the kubelet. ``registry`` is there where resources are announced by files."""

    directory: SocketDir
    registry: SocketDir | None
    registrar: Registrar
    pod_resources: PodResources
    holders: Holders
    cdi: CdiFiles
    plugins: DevicePlugins

    @property
    def directories(self) -> tuple[SocketDir, ...]:
        """The directories in which sockets are made."""
        return (self.directory,) if self.registry is None else (self.directory, self.registry)

    def status(self) -> DirectoryShare:
        """The kubelet's socket, and whether somebody is there: a kubelet that ends leaves its socket."""
        there = self.directory.kubelet.get() is not None and not self.registrar.refused
        return DirectoryShare(self.directory.kubelet_path, there)

    def open(self) -> None:
        """Lock the directories and clear own leftovers.

        :raises AlreadyRunning: if another instance serves this node.
        """
        for directory in self.directories:
            directory.open()

    def close(self) -> None:
        """Give the directories back, and ask nobody any more."""
        self.pod_resources.close()
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
    socket = root.path(settings.kubelet.pod_resources)
    pod_resources = PodResources(socket, root.path("/proc"), directory.path, core.snapshots, timeouts)
    inquiry = Inquiry(pod_resources, core.snapshots, core.reservations, core.observer, timeouts)
    holders = Holders(inquiry, core.snapshots, core.reservations, core.settings, core.releases, timeouts)
    cdi = CdiFiles(root.path(settings.cdi.spec_dir), core.snapshots, core.offering)
    forgotten = core.reservations.forgotten
    closing = Closing(root, core.wakes, core.observer, core.offering, core.snapshots, forgotten, timeouts)
    core.releases.look_with(closing)
    core.releases.ask_with(inquiry)
    asking = Asking(core.offering, core.reservations, inquiry, timeouts)
    core.provisions.serve_cdi(cdi)
    granting = Granting(
        core.offering, core.reservations, asking, closing, core.provisions, core.settings, timeouts
    )
    way = _way(directory, registry, registrar, timeouts)
    plugins = DevicePlugins(core.offering, granting, holders, cdi, core.supervisor, way, timeouts)
    pod_resources.write_with(plugins)
    return KubeletSide(directory, registry, registrar, pod_resources, holders, cdi, plugins)


def _way(directory: SocketDir, registry: SocketDir | None, registrar: Registrar, timeouts: Timeouts) -> Way:
    if registry is None:
        return RegisterWay(directory, registrar, timeouts)
    from nodeagent.kubelet.plugin_watcher import AnnounceWay  # here: few nodes register that way

    return AnnounceWay(registry, registrar, timeouts)
