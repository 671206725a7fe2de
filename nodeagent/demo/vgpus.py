# SPDX-License-Identifier: Apache-2.0
"""The second node of the demo: three cards that are split as the operator wishes, and wishes that change."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Mapping

from nodeagent.demo import stage
from nodeagent.demo.acting import Act, Step
from nodeagent.demo.screen import Screen
from nodeagent.sim import nodes
from nodeagent.sim.mdev import MdevKernel, SimulatedCards, fail_create, mend_create, simulated_cards

SMALL, MIDDLE, LARGE, WHOLE = (f"nvidia.com/GRID_T4-{size}" for size in ("1B", "2B", "8A", "16Q"))

_CONFIG = """\
apiVersion: nodeagent/v1
mdevs:
  manage: true
  types: [{types}]
  nodes: [{{nodeSelector: {{zone: edge}}, types: [nvidia-234]}}]
node: {{labels: {{zone: {zone}}}}}
timing: {{holders: 500ms}}
"""


async def play(screen: Screen, patience: float) -> None:
    """All steps of this node. :raises DemoFailed: if one does not come."""
    with tempfile.TemporaryDirectory(prefix="nodeagent-demo-") as directory:
        async with stage.opened(directory, patience, nodes.vgpu_node) as opened:
            kernel = MdevKernel(nodes.vgpu_cards())
            async with simulated_cards(opened.host, kernel) as split:
                node = VgpuNode(Act(opened, screen), split)
                for step in STEPS:
                    screen.step(step.title)
                    await step.play(node)


class VgpuNode:
    """The cards, and what they are split into: each as "number type", the type without its vendor."""

    def __init__(self, act: Act, split: SimulatedCards) -> None:
        self.act = act
        self.cards = split
        self.addresses = [card.address for card in split.kernel.cards]

    def configure(self, *types: str, zone: str = "core") -> None:
        """Write the list of types, and the node's label."""
        self.act.stage.configure(_CONFIG.format(types=", ".join(types), zone=zone))

    async def expect(self, what: str, wanted: Mapping[str, str]) -> None:
        """Wait until the cards have exactly this. :raises DemoFailed: if they do not get it."""
        await self.act.expect(what, lambda: self.has(wanted))

    async def expect_capacities(self, what: str, wanted: Mapping[str, int]) -> None:
        """Wait until the kubelet may give away so many. :raises DemoFailed: if it may not."""
        capacity = self.act.kubelet.capacity
        await self.act.expect(what, lambda: all(capacity(name) == (n, n) for name, n in wanted.items()))

    def has(self, wanted: Mapping[str, str]) -> bool:
        """True if the cards have exactly this."""
        return {card: text for card, text in self._contents().items() if text} == wanted

    def _contents(self) -> dict[str, str]:
        return {address: _content(self.cards.types_on(address)) for address in self.addresses}

    def everywhere(self, content: str) -> dict[str, str]:
        """The same on each card."""
        return dict.fromkeys(self.addresses, content)

    def show(self) -> None:
        """Show the cards."""
        names = {one.id[7:]: one.name or "" for one in self.cards.kernel.cards[0].types}
        split = ((card, text.partition(" ")) for card, text in self._contents().items())
        rows = [(card, f"nvidia-{number}", names[number], count) for card, (count, _, number) in split]
        self.act.screen.table(("CARD", "TYPE", "NAME", "VGPUS"), rows)


def _content(types: list[str]) -> str:
    return ", ".join(f"{types.count(name)} {name[7:]}" for name in sorted(set(types)))


async def _start(node: VgpuNode) -> None:
    act = node.act
    first, second, third = node.addresses
    node.configure("nvidia-222", "nvidia-228")
    act.screen.do("start nodeagent; its configuration says")
    act.screen.show("types: [nvidia-222, nvidia-228]")
    await act.daemon.start()
    await node.expect(
        "the types take turns in their order, and fill their cards",
        {first: "16 222", second: "2 228", third: "16 222"},
    )
    await node.expect_capacities("the kubelet has them all", {SMALL: 32, LARGE: 2})
    node.show()
    act.show_capacity(SMALL, LARGE)


async def _held(node: VgpuNode) -> None:
    act = node.act
    pod = await act.admit("virt-launcher-green", SMALL, 1)
    act.show_container(pod)
    (held,) = pod.result.ids[SMALL]
    card, _ = node.cards.instances[held]
    node.configure("nvidia-223")
    act.screen.do("the list becomes [nvidia-223]")
    everywhere = node.everywhere("8 223")
    await node.expect(
        "what nobody holds makes room; what a pod holds stays for now", everywhere | {card: "1 222"}
    )
    waiting = await act.stage.change("waiting", card)
    act.screen.show(f"{card}: {waiting['why']}")
    act.delete(pod)
    await node.expect("its card gets the new type, too", everywhere)
    await node.expect_capacities("the kubelet has them all", {MIDDLE: 24})


async def _failing(node: VgpuNode) -> None:
    act = node.act
    first, second, third = node.addresses
    fail_create(act.host, second, "nvidia-228", errno.EIO)
    node.configure("nvidia-228")
    act.screen.do(f"writes to {second} fail; the list becomes [nvidia-228]")
    await node.expect("the others get it", {first: "2 228", third: "2 228"})
    failing = await act.stage.change("failing", second)
    act.screen.show(f"{second}: {failing['what'].rpartition(': ')[2]}; it is tried again")
    mend_create(act.host, second, "nvidia-228")
    act.screen.do("the card works again")
    await node.expect("it gets its type with the next try", node.everywhere("2 228"))


async def _override(node: VgpuNode) -> None:
    act = node.act
    whole = node.everywhere("1 234")
    node.configure("nvidia-228", zone="edge")
    act.screen.do("the node gets the label zone=edge, for which [nvidia-234] is configured")
    await node.expect("each card becomes one whole vGPU", whole)
    await node.expect_capacities("the kubelet has them, and nothing else", {WHOLE: 3, LARGE: 0})
    node.show()
    act.screen.do("send SIGTERM")
    act.screen.expect("exit code 0, and all vGPUs stay")
    code = await act.daemon.end()
    act.verdict((code, node.has(whole)) == (0, True), f"exit code {code}")


STEPS: tuple[Step[VgpuNode], ...] = (
    Step("A second node: three Tesla T4 are split into vGPUs", _start),
    Step("The list of types changes while a pod holds one vGPU", _held),
    Step("A card whose vGPUs cannot be made delays no other", _failing),
    Step("A label of the node overrides the list", _override),
)
