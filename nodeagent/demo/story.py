# SPDX-License-Identifier: Apache-2.0
"""The demo: the real daemon lives through what happens to a node, and shows what it makes of it.

Each step does something to the host or the kubelet, says what must come of it, and waits for that. What does
not happen ends the demo with exit code 1 and the end of the daemon's log. Nothing stays behind: neither
process nor directory, also after Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable

import anyio

from nodeagent.demo import stage, story_vgpu
from nodeagent.demo.acting import Act
from nodeagent.demo.screen import Screen
from nodeagent.demo.stage import CONFIG, CONFIG_PATH, GPU, LOG_NAME, TESLA, USB, DemoFailed, Stage
from nodeagent.render.table import Paint
from nodeagent.sim.kubelet import devices

PATIENCE = 15.0  # seconds; what is shown takes less than one of them
FINE, FAILED = 0, 1

_BLOCKED, _BLOCKER = "0000:d8:00.0", "0000:d8:01.0"
_REBOUND = "0000:86:00.0"


def run(keep: bool, patience: float = PATIENCE) -> int:
    """Play all steps on stdout; the exit code. ``keep``: then leave all of it running until Ctrl-C.

    ``patience``: seconds after which what did not happen counts as failed.
    """
    screen = Screen(sys.stdout, Paint.of(sys.stdout, dict(os.environ)))
    with tempfile.TemporaryDirectory(prefix="nodeagent-demo-") as directory:
        return anyio.run(_perform, directory, screen, keep, patience)


async def _perform(directory: str, screen: Screen, keep: bool, patience: float) -> int:
    """The whole evening: ends after the last step, at the first failure, or by a signal."""
    story: _Story | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(_end_on_signals, group.cancel_scope, name="signals")
        async with stage.opened(directory, patience) as opened:
            story = _Story(opened, screen)
            await story.play(keep)
        group.cancel_scope.cancel()
    if story is None:
        return FAILED
    if story.unheard is not None:
        raise story.unheard
    return story.code


async def _end_on_signals(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


class _Story(Act):
    """The steps, in their order."""

    def __init__(self, stage: Stage, screen: Screen) -> None:
        super().__init__(stage, screen)
        self.code = FAILED
        self.unheard: BrokenPipeError | None = None  # the reader of our output has gone
        self._steps: tuple[Callable[[], Awaitable[None]], ...] = (
            self._start,
            self._two_gpus,
            self._not_viable,
            self._rebound,
            self._off_the_bus,
            self._kubelet_restart,
            self._second_node,
        )

    async def play(self, keep: bool) -> None:
        """All steps; sets the exit code, and explains a failure on stderr."""
        try:
            for step in self._steps:
                await step()
            await (self._keep() if keep else self._end())
        except DemoFailed as failure:
            where = self._screen.where
            print(f"\nTHE DEMO HAS FAILED in {where}\n{failure.lines()}", file=sys.stderr)
        except BrokenPipeError as error:
            self.unheard = error
        else:
            self.code = FINE

    async def _start(self) -> None:
        self._screen.step("The daemon starts on a node with four GeForce RTX 2060")
        self._screen.do(f"start nodeagent; its {CONFIG_PATH} says")
        self._screen.show(CONFIG)
        await self._stage.start_daemon()
        numbers = {GPU: (4, 4), USB: (4, 4), TESLA: (1, 0)}
        await self._expect(
            "three resources are registered with the kubelet", lambda: self._stage.serves(numbers)
        )
        self._show_capacity(GPU, USB, TESLA)

    async def _two_gpus(self) -> None:
        self._screen.step("A pod is given two GPUs, and the rest of their IOMMU groups waits")
        pod = await self._admit("virt-launcher-red", GPU, 2)
        self._show_container(pod)
        held = sorted(pod.result.ids[GPU])
        await self._expect(
            "after the settle time the USB controllers beside them are Unhealthy",
            lambda: self._kubelet.capacity(USB) == (4, 2),
        )
        for gpu in held:
            await self._show_reason(f"{gpu[:-1]}2", "group-held")
        self._show_capacity(GPU, USB, TESLA)
        self._delete(pod)
        await self._expect("they come back", lambda: self._kubelet.capacity(USB) == (4, 4))

    async def _not_viable(self) -> None:
        self._screen.step("A Tesla T4 cannot be given: its IOMMU group is not viable")
        self._screen.do(f"nodeagent explain {_BLOCKED}")
        self._screen.expect("the function that blocks the group is named")
        told = await self._stage.ask("explain", _BLOCKED)
        self._verdict("NOT viable" in told and f"bind {_BLOCKER} to vfio-pci" in told, told)
        self._screen.show(told)
        self._bind(_BLOCKER, "vfio-pci")
        await self._expect("it turns Healthy", lambda: self._kubelet.capacity(TESLA) == (1, 1))

    async def _rebound(self) -> None:
        self._screen.step("A driver is rebound by hand")
        self._bind(_REBOUND, "nvidia")
        await self._expect(f"{_REBOUND} turns Unhealthy", lambda: not self._healthy(GPU, _REBOUND))
        await self._show_reason(_REBOUND, "driver-changed")
        self._screen.do("ask for it all the same")
        await self._expect_refusal(_REBOUND)
        self._bind(_REBOUND, "vfio-pci")
        await self._expect("it turns Healthy", lambda: self._healthy(GPU, _REBOUND))

    async def _off_the_bus(self) -> None:
        self._screen.step("A GPU falls off the bus while a pod has it")
        pod = await self._admit("virt-launcher-blue", GPU, 1)
        (gpu,) = pod.result.ids[GPU]
        self._screen.do(f"the whole card of {gpu} leaves the machine")
        for number in range(4):
            self._stage.host.unplug(f"{gpu[:-1]}{number}")
        await self._expect(
            "the GPU stays listed as Unhealthy, and the pod's status says so",
            lambda: (
                self._kubelet.capacity(GPU) == (4, 3)
                and devices.health_of(self._kubelet.state.table, pod.uid)[gpu] == "Unhealthy"
            ),
        )
        await self._show_reason(gpu, "fallen-off-the-bus")
        await self._expect(
            "its USB controller, which nobody has, leaves the list", lambda: self._listed(USB) == 3
        )
        self._delete(pod)
        await self._expect(
            "the GPU leaves the list, one second after its Allocate", lambda: self._listed(GPU) == 3
        )

    async def _kubelet_restart(self) -> None:
        self._screen.step("The kubelet restarts")
        before = self._registrations()
        numbers = {GPU: (3, 3), USB: (3, 3), TESLA: (1, 1)}
        await self._kubelet.stop()
        self._screen.do("a new kubelet starts: it removes all plugin sockets and knows no plugin")
        await self._kubelet.start()
        await self._expect(
            "all three resources are registered again, once each",
            lambda: self._stage.serves(numbers) and self._registrations() - before == len(numbers),
        )
        self._show_capacity(GPU, USB, TESLA)

    async def _second_node(self) -> None:
        await story_vgpu.play(self._screen, self._stage.patience)

    async def _end(self) -> None:
        self._screen.step("The daemon ends")
        self._screen.do("send SIGTERM")
        self._screen.expect("exit code 0, and none of its sockets stays behind")
        code = await self._stage.end_daemon()
        left = [path.name for path in self._kubelet.socket.parent.iterdir() if path.is_socket()]
        self._verdict((code, left) == (0, ["kubelet.sock"]), f"exit code {code}, left behind: {left}")
        self._screen.end()

    async def _keep(self) -> None:
        self.code = FINE
        command = " ".join(self._stage.command())
        root = self._stage.host.directory
        self._screen.step("It goes on until you press Ctrl-C; in another terminal:")
        for line in (
            f"cd {stage.SOURCE}",
            *(f"{command} {verb}" for verb in ("status", "scan", f"explain {_REBOUND}", "config")),
            f"tail -f {root}/{LOG_NAME}",
            f"rm {root}/dev/vfio/12        # a device node vanishes; touch it, and it is back",
            f"$EDITOR {root}{CONFIG_PATH}  # taken over when you save it",
        ):
            self._screen.say(f"   {line}")
        await anyio.sleep_forever()

    def _registrations(self) -> int:
        return len(self._kubelet.statistics.registrations)

    def _listed(self, resource: str) -> int:
        return self._kubelet.capacity(resource)[0]

    def _healthy(self, resource: str, device_id: str) -> bool:
        return device_id in self._kubelet.state.table.healthy[resource]

    async def _expect_refusal(self, device_id: str) -> None:
        self._screen.expect("Allocate is refused")
        text = await self._stage.refusal(GPU, device_id)
        self._verdict(bool(text), f"{device_id} was given away")
        self._screen.show(text)

    def _bind(self, address: str, driver: str) -> None:
        self._screen.do(f"bind {address} to {driver}")
        self._stage.host.bind(address, driver)

    async def _show_reason(self, device_id: str, code: str) -> None:
        told = await self._stage.reason(device_id, code)
        self._screen.show(f"{device_id}: {told}")
