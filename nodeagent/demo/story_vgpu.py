# SPDX-License-Identifier: Apache-2.0
"""The second node of the demo: three cards that are split as the operator wishes, and wishes that change."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Mapping

from nodeagent.demo import stage
from nodeagent.demo.acting import Act
from nodeagent.demo.screen import Screen
from nodeagent.demo.stage import Stage
from nodeagent.sim import cards, nodes, refusals
from nodeagent.sim.cards import SimulatedCards
from nodeagent.sim.mdev_kernel import MdevKernel

SMALL, MIDDLE, LARGE, WHOLE = (f"nvidia.com/GRID_T4-{size}" for size in ("1B", "2B", "8A", "16Q"))

_CONFIG = """\
apiVersion: nodeagent/v1
mdevs:
  manage: true
  types: [{types}]
  nodes: [{{nodeSelector: {{zone: edge}}, types: [nvidia-234]}}]
node: {{labels: {{zone: {zone}}}}}
timing: {{settle: 500ms, holders: 500ms}}
"""


async def play(screen: Screen, patience: float) -> None:
    """All steps of this node. :raises DemoFailed: if one does not come."""
    with tempfile.TemporaryDirectory(prefix="nodeagent-demo-") as directory:
        async with stage.opened(directory, patience, nodes.vgpu_node) as opened:
            kernel = MdevKernel(nodes.vgpu_cards())
            async with cards.simulated(opened.host, kernel) as made:
                story = _Story(opened, screen, made)
                await story.play()


class _Story(Act):
    """The steps, in their order."""

    def __init__(self, stage: Stage, screen: Screen, made: SimulatedCards) -> None:
        super().__init__(stage, screen)
        self._cards = made
        self._first, self._second, self._third = (card.address for card in made.kernel.cards)

    async def play(self) -> None:
        """All steps."""
        await self._start()
        await self._held()
        await self._failing()
        await self._override()

    async def _start(self) -> None:
        self._screen.step("A second node: three Tesla T4 are split into vGPUs")
        self._configure("nvidia-222", "nvidia-228")
        self._screen.do("start nodeagent; its configuration says")
        self._screen.show("types: [nvidia-222, nvidia-228]")
        await self._stage.start_daemon()
        await self._expect(
            "the types take turns in their order, and fill their cards",
            lambda: self._exist({self._first: "16 222", self._second: "2 228", self._third: "16 222"}),
        )
        await self._expect("the kubelet has them all", lambda: self._capacities({SMALL: 32, LARGE: 2}))
        self._show_cards()
        self._show_capacity(SMALL, LARGE)

    async def _held(self) -> None:
        self._screen.step("The list of types changes while a pod holds one vGPU")
        pod = await self._admit("virt-launcher-green", SMALL, 1)
        self._show_container(pod)
        (held,) = pod.result.ids[SMALL]
        card, _ = self._cards.instances[held]
        self._configure("nvidia-223")
        self._screen.do("the list becomes [nvidia-223]")
        others = {each: "8 223" for each in (self._first, self._second, self._third) if each != card}
        await self._expect(
            "what nobody holds makes room; what a pod holds stays for now",
            lambda: self._exist({**others, card: "1 222"}),
        )
        waiting = await self._stage.change("waiting", card)
        self._screen.show(f"{card}: {waiting['why']}")
        self._delete(pod)
        everywhere = {**others, card: "8 223"}
        await self._expect("its card gets the new type, too", lambda: self._exist(everywhere))
        await self._expect("the kubelet has them all", lambda: self._capacities({MIDDLE: 24}))

    async def _failing(self) -> None:
        self._screen.step("A card whose vGPUs cannot be made delays no other")
        refusals.fail(self._cards.host, self._second, "nvidia-228", errno.EIO)
        self._configure("nvidia-228")
        self._screen.do(f"writes to {self._second} fail; the list becomes [nvidia-228]")
        await self._expect(
            "the others get it", lambda: self._exist({self._first: "2 228", self._third: "2 228"})
        )
        failing = await self._stage.change("failing", self._second)
        self._screen.show(f"{self._second}: {failing['what'].rpartition(': ')[2]}; it is tried again")
        refusals.mend(self._cards.host, self._second, "nvidia-228")
        self._screen.do("the card works again")
        await self._expect("it gets its type with the next try", lambda: self._exist(self._all("2 228")))

    async def _override(self) -> None:
        self._screen.step("A label of the node overrides the list")
        self._configure("nvidia-228", zone="edge")
        self._screen.do("the node gets the label zone=edge, for which [nvidia-234] is configured")
        await self._expect("each card becomes one whole vGPU", lambda: self._exist(self._all("1 234")))
        await self._expect(
            "the kubelet has them, and nothing else", lambda: self._capacities({WHOLE: 3, LARGE: 0})
        )
        self._show_cards()
        self._screen.do("send SIGTERM")
        self._screen.expect("exit code 0, and all vGPUs stay")
        code = await self._stage.end_daemon()
        self._verdict((code, self._exist(self._all("1 234"))) == (0, True), f"exit code {code}")

    def _configure(self, *types: str, zone: str = "core") -> None:
        self._stage.configure(_CONFIG.format(types=", ".join(types), zone=zone))

    def _all(self, content: str) -> Mapping[str, str]:
        return {card.address: content for card in self._cards.kernel.cards}

    def _exist(self, wanted: Mapping[str, str]) -> bool:
        """True if the cards have exactly this, each as "number type"."""
        return {card: text for card, text in self._contents().items() if text} == wanted

    def _contents(self) -> dict[str, str]:
        found = {}
        for card in self._cards.kernel.cards:
            types = self._cards.types_on(card.address)
            kinds = sorted(set(types))
            found[card.address] = ", ".join(f"{types.count(kind)} {kind[7:]}" for kind in kinds)
        return found

    def _capacities(self, wanted: Mapping[str, int]) -> bool:
        return all(self._kubelet.capacity(name) == (count, count) for name, count in wanted.items())

    def _show_cards(self) -> None:
        names = {kind.id[7:]: kind.name or "" for kind in self._cards.kernel.cards[0].types}
        rows = []
        for card, text in self._contents().items():
            count, _, kind = text.partition(" ")
            rows.append((card, f"nvidia-{kind}", names[kind], count))
        self._screen.table(("CARD", "TYPE", "NAME", "VGPUS"), rows)
