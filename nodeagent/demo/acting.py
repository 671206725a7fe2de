# SPDX-License-Identifier: Apache-2.0
"""What every act of the demo does: says what must come, waits for it, and shows it. Knows no story."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.demo.screen import Screen
from nodeagent.demo.stage import DemoFailed, Stage
from nodeagent.sim.kubelet.state import Pod


class Act:
    """One stage and the screen."""

    def __init__(self, stage: Stage, screen: Screen) -> None:
        self._stage = stage
        self._screen = screen
        self._kubelet = stage.kubelet

    async def _expect(self, what: str, state: Callable[[], bool]) -> None:
        self._screen.expect(what)
        try:
            await self._stage.until(state)
        except DemoFailed:
            self._screen.broken()
            raise
        self._screen.kept()

    def _verdict(self, kept: bool, otherwise: str) -> None:
        if not kept:
            self._screen.broken()
            raise DemoFailed(otherwise)
        self._screen.kept()

    async def _admit(self, name: str, resource: str, count: int) -> Pod:
        pod = Pod("demo", name, [{resource: count}])
        self._screen.do(f"create pod {pod.key} with {count} x {resource}")
        self._screen.expect("it runs with what it asked for")
        await self._kubelet.admit(pod)
        granted = pod.phase == "Running" and len(pod.result.ids.get(resource, ())) == count
        self._verdict(granted and pod.result.error is None, f"{pod.phase} {pod.message} {pod.results}")
        return pod

    def _delete(self, pod: Pod) -> None:
        self._screen.do(f"delete pod {pod.key}")
        self._kubelet.delete(pod)

    def _show_container(self, pod: Pod) -> None:
        envs = [f"env   {key}={value}" for key, value in pod.result.envs.items()]
        nodes = [f"node  {inside}  {permissions}" for _, inside, permissions in pod.result.devices]
        self._screen.show("\n".join(["its container gets", *envs, *nodes]))

    def _show_capacity(self, *resources: str) -> None:
        rows = [(name, *map(str, self._kubelet.capacity(name))) for name in resources]
        self._screen.table(("RESOURCE", "CAPACITY", "ALLOCATABLE"), rows)
