# SPDX-License-Identifier: Apache-2.0
"""The third node of the demo: it follows the KubeVirt CR of its cluster, whose API server is a stand-in."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from nodeagent.demo import stage
from nodeagent.demo.acting import Act, Step
from nodeagent.demo.screen import Screen
from nodeagent.demo.stage import GPU, Document
from nodeagent.sim import files
from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import KUBEVIRTS, NODES

SHARED = "example.com/gpu"
_NAME = "node3"
_SETTINGS = f"""\
kubeconfig: /etc/kubeconfig
node: {{name: {_NAME}}}
"""
_ENTRY = {"pciVendorSelector": "10DE:1F08", "resourceName": SHARED, "externalResourceProvider": True}
_MACHINE = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"namespace": "demo", "name": "grey"},
    "spec": {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": SHARED}]}}},
}


async def play(screen: Screen, patience: float) -> None:
    """All steps of this node. :raises DemoFailed: if one does not come."""
    with tempfile.TemporaryDirectory(prefix="nodeagent-demo-") as directory:
        async with FakeApiServer() as server, stage.opened(directory, patience) as opened:
            node = ClusterNode(Act(opened, screen), server)
            for step in STEPS:
                screen.step(step.title)
                await step.play(node)


class ClusterNode:
    """The node, and the API server that knows it."""

    def __init__(self, act: Act, server: FakeApiServer) -> None:
        self.act = act
        self.server = server
        self.permit()
        server.store.put(NODES, {"metadata": {"name": _NAME}})
        server.kubeconfig(Path(act.host.path("/etc/kubeconfig")))

    def permit(self, *entries: Document) -> None:
        """Edit the KubeVirt CR: it has these entries for PCI devices."""
        self.server.store.put(KUBEVIRTS, _cr(*entries))

    def file(self, name: str, content: Document) -> str:
        """The path of a file that has this; JSON is YAML."""
        path = f"{self.act.host.directory}/{name}"
        files.write(path, json.dumps(content))
        return path


def _cr(*entries: Document) -> dict[str, object]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"namespace": "kubevirt", "name": "kubevirt"},
        "spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": list(entries)}}},
        "status": {"phase": "Deployed"},
    }


async def _edit(node: ClusterNode) -> None:
    act = node.act
    capacity = act.kubelet.capacity
    act.stage.configure(f"apiVersion: nodeagent/v1\n{_SETTINGS}")
    act.screen.do("start nodeagent; its configuration says")
    act.screen.show(_SETTINGS)
    await act.daemon.start()
    await act.expect("the GPUs have their name from pci.ids", lambda: capacity(GPU) == (4, 4))
    act.screen.expect("the cluster is heard")
    await act.stage.hears(answers=True)
    act.screen.kept()
    act.screen.do("edit the KubeVirt CR; its permittedHostDevices say")
    act.screen.show(f"pciHostDevices: [{json.dumps(_ENTRY)}]")
    node.permit(_ENTRY)
    await act.expect("the GPUs have that name, without a restart", lambda: capacity(SHARED) == (4, 4))
    await act.expect("and no other", lambda: capacity(GPU) == (4, 0))
    act.show_capacity(SHARED, GPU)
    await _explain(node)


async def _explain(node: ClusterNode) -> None:
    act = node.act
    machine, cr = node.file("grey.yaml", _MACHINE), node.file("cr.yaml", _cr(_ENTRY))
    act.screen.do(f"nodeagent explain vmi grey.yaml --cr cr.yaml; the machine wants 1 x {SHARED}")
    act.screen.expect("this node can give it")
    text = await act.daemon.verb("explain", "vmi", machine, "--cr", cr)
    act.verdict("this node can give it now" in text, text)
    act.screen.show(text)


async def _away(node: ClusterNode) -> None:
    act = node.act
    act.screen.do("the API server goes away")
    await node.server.stop()
    act.screen.expect("the daemon says so")
    await act.stage.hears(answers=False)
    act.screen.kept()
    act.show_container(await act.admit("virt-launcher-grey", SHARED, 1))


STEPS: tuple[Step[ClusterNode], ...] = (
    Step("A third node follows its cluster: one edit of the KubeVirt CR", _edit),
    Step("The API server goes away, and what it said stays in force", _away),
)
