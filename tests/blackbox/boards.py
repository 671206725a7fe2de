# SPDX-License-Identifier: Apache-2.0
"""Boards whose functions share an IOMMU group, and what their tests ask of a node, for test_one_group_*.

Two kinds: a GPU with its USB function, offered as two resources, and two GPUs, offered as one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from grpclib.exceptions import GRPCError

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.harness import PATIENCE, T4, Daemon, Node, allocate, health, until_health

GPU, USB, LONE = "example.com/gpu", "example.com/usb", "example.com/lone"
LONE_AT = "0000:08:00.0"
RULES = """
resources:
  - {name: example.com/gpu, pci: [{devices: ["1eb8"]}]}
  - {name: example.com/usb, pci: [{devices: ["1ad8"]}]}
  - {name: example.com/lone, pci: [{devices: ["1ad9"]}]}
"""
REST = 5.0  # seconds after the last event within which all devices that no pod has are Healthy
FOR_EVER = ("--timing-settle", "60s")
HARDLY = ("--timing-settle", "50ms")


class Board(NamedTuple):
    """A GPU and its USB function, in a group of their own."""

    group: str
    gpu: str
    usb: str


class Pair(NamedTuple):
    """Two GPUs in a group of their own."""

    group: str
    first: str
    second: str


def usb_boards(node: Node, count: int, *, numa: int = -1) -> list[Board]:
    """Boards with a GPU and a USB function, and one function that is alone; three resources."""
    made = [
        Board(str(number), f"0000:{number}:00.0", f"0000:{number}:00.2")
        for number in range(20, 20 + 10 * count, 10)
    ]
    for board in made:
        node.add_gpu(board.gpu, int(board.group), numa=numa)
        add_usb(node, board.usb, int(board.group), "1ad8")
    add_usb(node, LONE_AT, 8, "1ad9")
    node.configure(RULES)
    return made


def pair_boards(node: Node, count: int) -> list[Pair]:
    """Boards with two T4, all of one resource."""
    made = [
        Pair(str(number), f"0000:{number}:00.0", f"0000:{number}:00.1")
        for number in range(20, 20 + 10 * count, 10)
    ]
    for board in made:
        node.add_gpu(board.first, int(board.group))
        node.add_gpu(board.second, int(board.group))
    return made


def add_usb(node: Node, address: str, group: int, device: str) -> None:
    node.host.add_function(
        address, vendor="10de", device=device, pci_class="0c0330", driver="vfio-pci", group=group
    )


def usb_lists(boards: Sequence[Board]) -> dict[str, int]:
    """How many devices each resource of ``usb_boards`` has."""
    return {GPU: len(boards), USB: len(boards), LONE: 1}


def pair_lists(boards: Sequence[Pair]) -> dict[str, int]:
    """How many devices the resource of ``pair_boards`` has."""
    return {T4: 2 * len(boards)}


@asynccontextmanager
async def started(
    node: Node, *flags: str, listed: Mapping[str, int], **options: Any
) -> AsyncIterator[tuple[Daemon, FakeKubelet]]:
    """Daemon and a kubelet with these options, when the kubelet has these lists."""
    async with node.kubelet(**options) as kubelet, node.daemon(*flags) as daemon:
        await all_listed(kubelet, listed)
        yield daemon, kubelet


async def all_listed(kubelet: FakeKubelet, listed: Mapping[str, int]) -> None:
    """Wait until the kubelet has these resources with that many devices."""
    for resource, devices in listed.items():
        await kubelet.until_listed(resource, devices, PATIENCE)


def groups(pod: Pod) -> set[str]:
    """The IOMMU groups whose nodes the pod's containers got."""
    paths = [host for result in pod.results.values() for host, _, _ in result.devices]
    return {Path(path).name for path in paths} - {"vfio"}


def running(*pods: Pod) -> None:
    """Check that these pods were admitted and their containers could be made."""
    for pod in pods:
        assert pod.phase == "Running", pod.message
        assert [result.error for result in pod.results.values() if result.error] == []


def apart(*pods: Pod) -> None:
    """Check that no two of these pods have functions of one group."""
    seen: dict[str, str] = {}
    for pod in pods:
        for group in groups(pod):
            assert seen.setdefault(group, pod.key) == pod.key, f"group {group}: {seen[group]}, {pod.key}"


async def until_all_healthy(kubelet: FakeKubelet, *resources: str, within: float = PATIENCE) -> None:
    """Wait until every device of these resources is Healthy in the last list."""

    def healthy() -> bool:
        told = [text for resource in resources for text in health(kubelet, resource).values()]
        return bool(told) and set(told) == {"Healthy"}

    await kubelet.until(healthy, within)


async def end(node: Node, kubelet: FakeKubelet, *pods: Pod) -> None:
    """Let the pods, the last of the node, end; wait until all that they had, and its siblings, is free again.

    What is Healthy may still be so for the pod that has ended: who holds what must be known as well.
    """
    for pod in pods:
        kubelet.delete(pod)
    await node.until_told(lambda told: not told["holders"])
    await until_all_healthy(kubelet, *kubelet.state.table.devices)


async def stays_taken(kubelet: FakeKubelet, board: Board, quiet: Pod) -> None:
    """The sibling of what a plain init container got stays so when a pod without devices has ended."""
    await until_health(kubelet, USB, board.usb, "Unhealthy")
    kubelet.delete(quiet)
    kubelet.state.table.save()
    await stays(kubelet, lambda: health(kubelet, USB) == {board.usb: "Unhealthy"}, 2.0)
    assert (await kubelet.admit(Pod("ns", "late", [{USB: 1}]))).phase == "Failed"


async def named(node: Node, device: str, pod: Pod) -> None:
    """Wait until the daemon tells that this pod has the device."""
    await node.until_told(lambda told: told["holders"].get(device, {}).get("pod") == pod.key)


async def refusal(kubelet: FakeKubelet, resource: str, *devices: str) -> str:
    """The text with which an Allocate of these devices is refused; empty if it is granted."""
    try:
        await allocate(kubelet, resource, devices)
    except GRPCError as error:
        return error.message or "without a text"
    return ""


async def stays(kubelet: FakeKubelet, condition: Callable[[], bool], seconds: float) -> None:
    """Check that the condition holds now, and whatever happens for so long."""
    assert condition()
    with contextlib.suppress(TimeoutError):
        await kubelet.until(lambda: not condition(), seconds)
    assert condition()


async def what(node: Node, device: str) -> str:
    """What is wrong with a device, as the daemon tells; empty if nothing is."""
    told = await node.status()
    devices = [each for resource in told["resources"] for each in resource["devices"]]
    return next(
        (str(each["message"]) for each in devices if each["id"] == device and not each["healthy"]), ""
    )
