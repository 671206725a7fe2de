# SPDX-License-Identifier: Apache-2.0
"""What one kubelet shows of allocations: PodResources at a socket, and its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Settings
from nodeagent.kernel.root import Root
from nodeagent.kubelet.checkpoint import Checkpoint, CheckpointFile
from nodeagent.kubelet.pod_resources import PodReader, VirtHandler
from nodeagent.kubelet.socket_dir import CHECKPOINT
from nodeagent.model.allocation import PodList


class Lists(Protocol):
    """The lists of our resources."""

    def send_again(self) -> bool:
        """Send one list once more; False if the kubelet reads none."""
        ...


class KubeletView:
    """Reads both sources. The ids of virt-handler's resources are translated here: they are group numbers."""

    def __init__(self, root: Root, settings: Settings, snapshots: Snapshots, timeouts: Timeouts) -> None:
        plugins = root.path(settings.kubelet.device_plugin_dir)
        self._path = root.path(settings.kubelet.pod_resources)
        self._snapshots = snapshots
        self._virt_handler = VirtHandler(plugins)
        self._reader = PodReader(self._path, self._virt_handler, timeouts.pod_resources_rpc)
        self._checkpoint = CheckpointFile(f"{plugins}/{CHECKPOINT}")
        self._lists: Lists | None = None

    async def list_pods(self) -> PodList:
        """The answer of PodResources.

        What the KubeVirt CR leaves to virt-handler is known to be its own, whatever its sockets say.

        :raises KubeletUnavailable: if there is none in time.
        """
        self._virt_handler.learn(rule.name for rule in self._snapshots.now.spec.virt_handler_rules.values())
        return await self._reader.pods()

    def read_checkpoint(self) -> Checkpoint:
        """The checkpoint. Blocks on a file."""
        checkpoint = self._checkpoint.read()
        self._virt_handler.learn(each.resource for each in checkpoint.entries if each.device_id.isdecimal())
        return checkpoint

    def resend_with(self, lists: Lists) -> None:
        """One of these is sent to have the checkpoint written."""
        self._lists = lists

    def resend_list(self) -> bool:
        """Have the kubelet write the checkpoint; False if it reads no list of ours."""
        return self._lists is not None and self._lists.send_again()

    def is_present(self) -> bool:
        """True if there is a socket of PodResources."""
        return Path(self._path).exists()

    def is_expected(self) -> bool:
        """True if a kubelet that is starting can be expected to answer: there is a place for its socket."""
        return Path(self._path).parent.is_dir()

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
