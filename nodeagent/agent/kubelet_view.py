# SPDX-License-Identifier: Apache-2.0
"""Reads the allocations of one kubelet: from PodResources on its socket, and from its checkpoint file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Settings
from nodeagent.kernel.root import Root
from nodeagent.kubelet.checkpoint import Checkpoint, CheckpointFile
from nodeagent.kubelet.pod_resources import PodReader, VirtHandler
from nodeagent.kubelet.socket_dir import CHECKPOINT
from nodeagent.model.allocation import PodList


class KubeletView:
    """Reads both sources, and translates the IOMMU group numbers that virt-handler uses as device ids."""

    def __init__(self, root: Root, settings: Settings, snapshots: Snapshots, timeouts: Timeouts) -> None:
        plugins = root.path(settings.kubelet.device_plugin_dir)
        self._path = root.path(settings.kubelet.pod_resources)
        self._snapshots = snapshots
        self._virt_handler = VirtHandler(plugins)
        self._reader = PodReader(self._path, self._virt_handler, timeouts.pod_resources_rpc)
        self._checkpoint = CheckpointFile(f"{plugins}/{CHECKPOINT}")
        # makes the kubelet write its checkpoint, by a device list sent again; False if it reads none of ours
        self.resend_list: Callable[[], bool] = lambda: False

    async def list_pods(self) -> PodList:
        """The answer of PodResources.

        Resources that the KubeVirt CR leaves to virt-handler count as virt-handler's, whatever sockets exist.

        :raises KubeletUnavailable: if there is no answer in time.
        :raises KubeletAway: if no process listens on the socket.
        """
        self._virt_handler.learn(rule.name for rule in self._snapshots.now.spec.virt_handler_rules.values())
        return await self._reader.pods()

    def read_checkpoint(self) -> Checkpoint:
        """The checkpoint. Blocks on a file."""
        checkpoint = self._checkpoint.read()
        self._virt_handler.learn(each.resource for each in checkpoint.entries if each.device_id.isdecimal())
        return checkpoint

    def is_present(self) -> bool:
        """True if the PodResources socket exists."""
        return Path(self._path).exists()

    def is_expected(self) -> bool:
        """True if a starting kubelet can be expected to answer: the directory of its socket exists."""
        return Path(self._path).parent.is_dir()

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
