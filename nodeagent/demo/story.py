# SPDX-License-Identifier: Apache-2.0
"""The demo: runs the real daemon on three simulated nodes, and shows its reaction to each event.

Each step changes the host, the kubelet or the cluster, prints the expected effect, and waits for it. If an
effect does not happen, the demo prints the end of the daemon's log and exits with code 1. The demo always
removes its processes and directories, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio

from nodeagent.base import terminal
from nodeagent.base.terminal import Paint
from nodeagent.demo.node import (
    CONFIG_PATH,
    IS_INSTALLED,
    LOG_NAME,
    SOURCE,
    DemoFailed,
    DemoNode,
    Document,
    Screen,
    check,
    open_node,
)
from nodeagent.sim import files
from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import KUBEVIRTS, NODES
from nodeagent.sim.kubelet.state import Pod, health_of
from nodeagent.sim.mdev import MdevKernel, SimulatedCards, fail_create, mend_create, simulated_cards
from nodeagent.sim.nodes import vgpu_cards, vgpu_node

PATIENCE = 15.0  # seconds; each effect takes less than one of them
FINE, FAILED = 0, 1

GPU = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
USB = "nvidia.com/gpu-usb"
TESLA = "nvidia.com/TU104GL_TESLA_T4"
CONFIG = f"""\
apiVersion: nodeagent/v1
resources:
  - {{name: {USB}, pci: [{{vendors: ["10de"], devices: ["1ada"]}}]}}
timing: {{holders: 500ms}}   # quicker than usual: this is a demo
"""
_REBOUND = "0000:86:00.0"
_BLOCKED, _BLOCKER = "0000:d8:00.0", "0000:d8:01.0"

_SMALL, _MIDDLE, _LARGE, _WHOLE = (f"nvidia.com/GRID_T4-{size}" for size in ("1B", "2B", "8A", "16Q"))
_VGPU_CONFIG = """\
apiVersion: nodeagent/v1
mdevs:
  manage: true
  types: [{types}]
  nodes: [{{nodeSelector: {{zone: edge}}, types: [nvidia-234]}}]
node: {{labels: {{zone: {zone}}}}}
timing: {{holders: 500ms}}
"""

_SHARED = "example.com/gpu"
_NODE_NAME = "node3"
_CLUSTER_CONFIG = f"""\
kubeconfig: /etc/kubeconfig
node: {{name: {_NODE_NAME}}}
"""
_ENTRY = {"pciVendorSelector": "10DE:1F08", "resourceName": _SHARED, "externalResourceProvider": True}
_VMI = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"namespace": "demo", "name": "grey"},
    "spec": {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": _SHARED}]}}},
}


def run(keep: bool, page: bool = False, patience: float = PATIENCE) -> int:
    """Play all steps on stdout and return the exit code. ``keep``: leave everything running until Ctrl-C.

    ``page``: serve the status page and print its address. ``patience``: timeout of each effect in seconds.
    """
    environ = dict(os.environ)
    screen = Screen(sys.stdout, Paint.of(sys.stdout, environ), terminal.find_width(sys.stdout, environ))
    try:
        return anyio.run(_play, screen, keep, page, patience)
    except DemoFailed as failure:
        print(f"\nTHE DEMO HAS FAILED in {screen.where}\n{failure.lines()}", file=sys.stderr)
        return FAILED


async def _play(screen: Screen, keep: bool, page: bool, patience: float) -> int:
    """Play all steps; stop after the last one, at the first failure, or on a signal."""
    code = FAILED
    with anyio.CancelScope() as interrupted:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
                asyncio.get_running_loop().add_signal_handler(number, interrupted.cancel)
        async with open_node(screen, patience, page=page) as node:
            await play_passthrough(node)
            await play_vgpus(screen, patience)
            await play_cluster(screen, patience)
            code = FINE
            if keep:
                await _keep(node)
            await _end(node)
    return code


async def play_passthrough(node: DemoNode) -> None:
    """Play the first node: whole GPUs are allocated, blocked, rebound and unplugged. :raises DemoFailed:"""
    screen, host, kubelet = node.screen, node.host, node.kubelet
    capacity, table = kubelet.capacity, kubelet.state.table

    screen.step("The daemon starts on a node with four GeForce RTX 2060")
    node.configure(CONFIG)
    screen.do(f"start nodeagent; its {CONFIG_PATH} says")
    screen.show(CONFIG)
    await node.start_daemon()
    numbers = {GPU: (4, 4), USB: (4, 4), TESLA: (1, 0)}
    await node.expect("three resources are registered with the kubelet", lambda: node.serves(numbers))
    node.show_capacity(GPU, USB, TESLA)
    if node.page:
        screen.show(f"open {await node.page_address()} in a browser")

    screen.step("A pod gets two GPUs; the other devices of their groups are unavailable")
    red = await node.admit("virt-launcher-red", GPU, 2)
    node.show_container(red)
    await node.expect(
        "the USB controllers in the groups of these two GPUs are Unhealthy", lambda: capacity(USB) == (4, 2)
    )
    for gpu in sorted(red.result.ids[GPU]):
        await node.show_reason(f"{gpu[:-1]}2", "group-held")
    node.show_capacity(GPU, USB, TESLA)
    node.delete(red)
    await node.expect("they are Healthy again", lambda: capacity(USB) == (4, 4))

    screen.step("A Tesla T4 cannot be allocated: its IOMMU group is not viable")
    screen.do(f"nodeagent explain {_BLOCKED}")
    with screen.expect("the function that blocks the group is named"):
        text = await node.run("explain", _BLOCKED)
        check("NOT viable" in text and f"not need {_BLOCKER}" in text, text)
    screen.show(text)
    node.bind(_BLOCKER, "vfio-pci")
    await node.expect("it becomes Healthy", lambda: capacity(TESLA) == (1, 1))

    screen.step("A driver is rebound by hand")
    node.bind(_REBOUND, "nvidia")
    await node.expect(f"{_REBOUND} becomes Unhealthy", lambda: _REBOUND not in table.healthy[GPU])
    await node.show_reason(_REBOUND, "driver-changed")
    screen.do("request it nevertheless")
    with screen.expect("Allocate is refused"):
        text = await node.refusal(GPU, _REBOUND)
        check(bool(text), f"{_REBOUND} was allocated")
    screen.show(text)
    node.bind(_REBOUND, "vfio-pci")
    await node.expect("it becomes Healthy", lambda: _REBOUND in table.healthy[GPU])

    screen.step("A GPU falls off the bus while a pod has it")
    blue = await node.admit("virt-launcher-blue", GPU, 1)
    (lost,) = blue.result.ids[GPU]
    await _until_allocated(node, lost, blue)
    screen.do(f"unplug the whole card of {lost}")
    for number in range(4):
        host.unplug(f"{lost[:-1]}{number}")
    await node.expect(
        "the GPU stays listed as Unhealthy, and the pod's status says so",
        lambda: capacity(GPU) == (4, 3) and health_of(table, blue.uid)[lost] == "Unhealthy",
    )
    await node.show_reason(lost, "fallen-off-the-bus")
    await node.expect("the USB controller of that card is no longer listed", lambda: capacity(USB)[0] == 3)
    node.delete(blue)
    await node.expect("the GPU leaves the list", lambda: capacity(GPU)[0] == 3)

    screen.step("The kubelet restarts")
    registrations = kubelet.statistics.registrations
    before = len(registrations)
    numbers = {GPU: (3, 3), USB: (3, 3), TESLA: (1, 1)}
    await kubelet.stop()
    screen.do("a new kubelet starts: it removes all plugin sockets and knows no plugin")
    await kubelet.start()
    await node.expect(
        "all three resources are registered again, once each",
        lambda: node.serves(numbers) and len(registrations) - before == len(numbers),
    )
    node.show_capacity(GPU, USB, TESLA)


async def _until_allocated(node: DemoNode, device: str, pod: Pod) -> None:
    """Wait until the daemon has learned from the kubelet that this pod has the device."""
    await node.until_status(
        lambda status: [each for each in (status["holders"].get(device, {}),) if each.get("pod") == pod.key],
        f"{pod.key} is not reported to have {device}",
    )


async def play_vgpus(screen: Screen, patience: float) -> None:
    """Play the second node: cards are split into the configured types. :raises DemoFailed:"""
    async with (
        open_node(screen, patience, vgpu_node) as node,
        simulated_cards(node.host, MdevKernel(vgpu_cards())) as cards,
    ):
        await _split(node, cards)


async def _split(node: DemoNode, cards: SimulatedCards) -> None:
    screen = node.screen
    first, second, third = (card.address for card in cards.kernel.cards)

    def configure(*types: str, zone: str = "core") -> None:
        node.configure(_VGPU_CONFIG.format(types=", ".join(types), zone=zone))

    def everywhere(content: str) -> dict[str, str]:
        return dict.fromkeys((first, second, third), content)

    async def expect(effect: str, wanted: Mapping[str, str]) -> None:
        await node.expect(effect, lambda: _contents(cards) == wanted)

    async def expect_capacities(effect: str, wanted: Mapping[str, int]) -> None:
        capacity = node.kubelet.capacity
        await node.expect(effect, lambda: all(capacity(name) == (n, n) for name, n in wanted.items()))

    screen.step("A second node: three Tesla T4 are split into vGPUs")
    configure("nvidia-222", "nvidia-228")
    screen.do("start nodeagent; its configuration says")
    screen.show("types: [nvidia-222, nvidia-228]")
    await node.start_daemon()
    await expect(
        "each card is filled with vGPUs of one type; the types alternate",
        {first: "16 222", second: "2 228", third: "16 222"},
    )
    await expect_capacities("the kubelet has them all", {_SMALL: 32, _LARGE: 2})
    _show_cards(screen, cards)
    node.show_capacity(_SMALL, _LARGE)

    screen.step("The list of types changes while a pod uses one vGPU")
    pod = await node.admit("virt-launcher-green", _SMALL, 1)
    node.show_container(pod)
    card, _ = cards.instances[pod.result.ids[_SMALL][0]]
    configure("nvidia-223")
    screen.do("the list becomes [nvidia-223]")
    await expect(
        "unused vGPUs are replaced; the vGPU of the pod stays for now", everywhere("8 223") | {card: "1 222"}
    )
    waiting = await node.change("waiting", card)
    screen.show(f"{card}: {waiting['message']}")
    node.delete(pod)
    await expect("the card of the deleted pod gets the new vGPU type as well", everywhere("8 223"))
    await expect_capacities("the kubelet has them all", {_MIDDLE: 24})

    screen.step("A card whose vGPUs cannot be created delays no other card")
    fail_create(node.host, second, "nvidia-228", errno.EIO)
    configure("nvidia-228")
    screen.do(f"writes to {second} fail; the list becomes [nvidia-228]")
    await expect("the other cards get it", {first: "2 228", third: "2 228"})
    failing = await node.change("failing", second)
    screen.show(f"{second}: {failing['message'].rpartition(': ')[2]}; it is tried again")
    mend_create(node.host, second, "nvidia-228")
    screen.do("the card works again")
    await expect("the card gets its vGPU type at the next retry", everywhere("2 228"))

    screen.step("A label of the node overrides the list")
    configure("nvidia-228", zone="edge")
    screen.do("the node gets the label zone=edge, for which [nvidia-234] is configured")
    await expect("each card has one vGPU of its full size", everywhere("1 234"))
    await expect_capacities("the kubelet lists these vGPUs and no others", {_WHOLE: 3, _LARGE: 0})
    _show_cards(screen, cards)
    screen.do("send SIGTERM")
    with screen.expect("exit code 0, and all vGPUs stay"):
        code = await node.end_daemon()
        check((code, _contents(cards)) == (0, everywhere("1 234")), f"exit code {code}")


def _contents(cards: SimulatedCards) -> dict[str, str]:
    """Return the vGPUs of each card as "number type", the type without its vendor; omit empty cards."""
    contents = {}
    for card in cards.kernel.cards:
        types = cards.types_on(card.address)
        if types:
            counts = (f"{types.count(name)} {name[7:]}" for name in sorted(set(types)))
            contents[card.address] = ", ".join(counts)
    return contents


def _show_cards(screen: Screen, cards: SimulatedCards) -> None:
    names = {one.id[7:]: one.name or "" for one in cards.kernel.cards[0].types}
    contents = ((card, text.partition(" ")) for card, text in _contents(cards).items())
    rows = [(card, f"nvidia-{number}", names[number], count) for card, (count, _, number) in contents]
    screen.table(("CARD", "TYPE", "NAME", "VGPUS"), rows)


async def play_cluster(screen: Screen, patience: float) -> None:
    """Play the third node, which watches the KubeVirt CR of its cluster. :raises DemoFailed:"""
    async with FakeApiServer() as server, open_node(screen, patience) as node:
        await _follow(node, server)


async def _follow(node: DemoNode, server: FakeApiServer) -> None:
    screen, capacity = node.screen, node.kubelet.capacity
    server.store.put(KUBEVIRTS, _kubevirt())
    server.store.put(NODES, {"metadata": {"name": _NODE_NAME}})
    files.directory(node.host.path("/etc"))
    server.kubeconfig(Path(node.host.path("/etc/kubeconfig")))

    screen.step("A third node watches its cluster: one edit of the KubeVirt CR")
    node.configure(f"apiVersion: nodeagent/v1\n{_CLUSTER_CONFIG}")
    screen.do("start nodeagent; its configuration says")
    screen.show(_CLUSTER_CONFIG)
    await node.start_daemon()
    await node.expect("the GPUs have their name from pci.ids", lambda: capacity(GPU) == (4, 4))
    with screen.expect("the API server answers"):
        await node.until_cluster(answers=True)
    screen.do("edit the KubeVirt CR; its permittedHostDevices say")
    screen.show(f"pciHostDevices: [{json.dumps(_ENTRY)}]")
    server.store.put(KUBEVIRTS, _kubevirt(_ENTRY))
    await node.expect(
        "the GPUs get the resource name of the CR without a restart", lambda: capacity(_SHARED) == (4, 4)
    )
    await node.expect("and no other", lambda: capacity(GPU) == (4, 0))
    node.show_capacity(_SHARED, GPU)
    vmi, cr = (f"{node.host.directory}/{name}.yaml" for name in ("grey", "cr"))
    files.write(vmi, json.dumps(_VMI))  # JSON is valid YAML
    files.write(cr, json.dumps(_kubevirt(_ENTRY)))
    screen.do(f"nodeagent explain vmi grey.yaml --cr cr.yaml; the VM requests 1 x {_SHARED}")
    with screen.expect("available on this node"):
        text = await node.run("explain", "vmi", vmi, "--cr", cr)
        check("  available on this node\n" in text, text)
    screen.show(text)

    screen.step("The API server becomes unreachable, and the last known CR stays in force")
    screen.do("the API server stops")
    await server.stop()
    with screen.expect("the daemon says so"):
        await node.until_cluster(answers=False)
    node.show_container(await node.admit("virt-launcher-grey", _SHARED, 1))


def _kubevirt(*entries: Document) -> dict[str, object]:
    """Return the KubeVirt CR with these entries for PCI devices."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"namespace": "kubevirt", "name": "kubevirt"},
        "spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": list(entries)}}},
        "status": {"phase": "Deployed"},
    }


async def _end(node: DemoNode) -> None:
    screen = node.screen
    screen.step("The daemon ends")
    screen.do("send SIGTERM")
    with screen.expect("exit code 0, and no socket of the daemon remains"):
        code = await node.end_daemon()
        left = [path.name for path in node.kubelet.paths.plugins.iterdir() if path.is_socket()]
        check((code, left) == (0, ["kubelet.sock"]), f"exit code {code}, left behind: {left}")
    screen.end()


async def _keep(node: DemoNode) -> None:
    """Print how to use the node, and leave it running."""
    root = node.host.directory
    command = f"nodeagent --root {root}" if IS_INSTALLED else " ".join(node.command())
    node.screen.step("It goes on until you press Ctrl-C; in another terminal:")
    if node.page:
        node.screen.say(f"   open {await node.page_address()}     # in a browser")
    for line in (
        *(() if IS_INSTALLED else (f"cd {SOURCE}",)),
        *(f"{command} {verb}" for verb in ("status", "scan", f"explain {_BLOCKED}", "config")),
        f"tail -f {root}/{LOG_NAME}",
        f"rm {root}/dev/vfio/12        # removes a device node; touch creates it again",
        f"$EDITOR {root}{CONFIG_PATH}  # applied when you save it",
    ):
        node.screen.say(f"   {line}")
    await anyio.sleep_forever()
