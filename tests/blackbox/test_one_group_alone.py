# SPDX-License-Identifier: Apache-2.0
"""What one container has alone of nodes and CDI devices, and the kubelet takes for free.

See test_one_group_twice.py for how that comes.
"""

from __future__ import annotations

import os
from contextlib import closing

import anyio
import pytest

from nodeagent.base import threads
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.pod_resources import PodReader, VirtHandler
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import HARDLY, LONE, all_listed, running, stays, usb_boards
from tests.blackbox.harness import Node, health, pod
from tests.blackbox.test_one_group_named import described
from tests.blackbox.test_one_group_nodes import BY_CDI, BY_NODE, SHARED
from tests.sim import devnodes, fifos

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")

TTY = "/dev/ttyX"
BY_NODE_ALONE = '{name: example.com/shared, node: {paths: ["/dev/tty*"], perPath: true}}'
BY_DEVICE = '{name: example.com/lone, pci: [{devices: ["1ad9"]}]}'
SERIAL_AT = "0000:07:00.0"


def rules(*each: str) -> str:
    return f"resources: [{', '.join(each)}]"


async def admitted_and_forgotten(node: Node, kubelet: FakeKubelet, vm: Pod, old: Pod) -> str:
    """The pod is given a device while another one ends and somebody asks who holds what; the id."""
    (device,) = health(kubelet, SHARED)
    path = node.host.attribute(SERIAL_AT, "enable")
    content = fifos.replace_by_fifo(path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kubelet.admit, vm)
        writer = await threads.call(os.open, path, os.O_WRONLY)
        kubelet.delete(old)
        socket = str(kubelet.paths.pod_resources / "kubelet.sock")
        virt_handler, limit = VirtHandler(str(node.plugins)), Timeouts().pod_resources_rpc
        with closing(PodReader(socket, virt_handler, limit)) as reader:
            await reader.pods()
        fifos.replace_fifo(path, content)
        os.close(writer)
    running(vm)
    return device


@pytest.mark.parametrize("rule", [BY_NODE_ALONE, BY_CDI], ids=["node", "cdi"])
async def test_what_one_container_has_alone_is_given_to_no_second_one_that_the_kubelet_takes_it_for_free(
    node: Node, rule: str
) -> None:
    usb_boards(node, 1)
    node.host.add_function(
        SERIAL_AT, vendor="10b5", device="9030", pci_class="070002", driver="serial", group=7
    )
    devnodes.add(node.host, TTY, (188, 9), f"{devnodes.real_directory(node.host, SERIAL_AT)}/ttyX")
    described(node, path=TTY)
    node.configure(rules(rule, BY_DEVICE))
    async with node.kubelet() as kubelet, node.daemon():
        await all_listed(kubelet, {SHARED: 1, LONE: 1})
        old = await kubelet.admit(pod("old", {LONE: 1}))
        vm = pod("vm", {SHARED: 1})
        device = await admitted_and_forgotten(node, kubelet, vm, old)
        other = await kubelet.admit(pod("other", {SHARED: 1}))
        assert f"{device}: in use by " in other.message
        kubelet.delete(vm)
        running(await kubelet.admit(pod("next", {SHARED: 1})))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [BY_NODE_ALONE, BY_CDI], ids=["node", "cdi"])
async def test_what_one_container_has_alone_is_free_as_soon_as_its_pod_has_ended(
    node: Node, rule: str
) -> None:
    """Whatever kind of container that is: of plain init containers only the kubelet's file tells."""
    devnodes.add(node.host, TTY, (188, 9))
    described(node, path=TTY)
    node.configure(rules(rule))
    async with node.kubelet() as kubelet, node.daemon(*HARDLY):
        await kubelet.until_listed(SHARED, 1)
        running(await kubelet.admit(pod("without", {})))
        for number in range(3):
            first = pod(f"first{number}", {}, init_containers=[{SHARED: 1}, {SHARED: 1}], sidecars=[{}])
            running(await kubelet.admit(first))
            await stays(kubelet, lambda: bool(kubelet.state.pods), 0.6)
            kubelet.delete(first)
            second = await kubelet.admit(pod("same", {SHARED: 1}))
            running(second)
            kubelet.delete(second)
            third = await kubelet.admit(pod("third", {}, sidecars=[{SHARED: 1}]))
            running(third)
            kubelet.delete(third)


async def test_shares_of_a_node_are_given_without_a_question_to_the_kubelet(node: Node) -> None:
    """It does not matter which share a container has: /dev/kvm waits for nobody."""
    devnodes.add(node.host, TTY, (188, 9))
    node.configure(rules(BY_NODE % f"path: {TTY}"))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(SHARED, 2)
        running(await kubelet.admit(pod("one", {SHARED: 1})))
        kubelet.faults.set("pod-resources-delay", 30.0)
        began = anyio.current_time()
        running(await kubelet.admit(pod("two", {SHARED: 1})))
        assert anyio.current_time() < began + 0.5
