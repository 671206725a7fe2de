# SPDX-License-Identifier: Apache-2.0
"""What every step of the demo does: says what must come, waits for it, and shows it. Knows no story."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from nodeagent.demo.daemon import DemoFailed
from nodeagent.demo.screen import Screen
from nodeagent.demo.stage import Stage
from nodeagent.sim.kubelet.state import Pod

T = TypeVar("T")


class Act:
    """One stage and the screen."""

    def __init__(self, stage: Stage, screen: Screen) -> None:
        self.stage = stage
        self.screen = screen
        self.kubelet = stage.kubelet
        self.host = stage.host
        self.daemon = stage.daemon

    async def expect(self, what: str, state: Callable[[], bool]) -> None:
        """Say what must come, and wait for it. :raises DemoFailed: if it does not come."""
        self.screen.expect(what)
        try:
            await self.stage.until(state)
        except DemoFailed:
            self.screen.broken()
            raise
        self.screen.kept()

    def verdict(self, kept: bool, otherwise: str) -> None:
        """Say whether the last expectation was kept. :raises DemoFailed: if it was not."""
        if not kept:
            self.screen.broken()
            raise DemoFailed(otherwise)
        self.screen.kept()

    async def admit(self, name: str, resource: str, count: int) -> Pod:
        """Create a pod that must get what it asks for. :raises DemoFailed: if it does not."""
        pod = Pod("demo", name, [{resource: count}])
        self.screen.do(f"create pod {pod.key} with {count} x {resource}")
        self.screen.expect("it runs with what it asked for")
        await self.kubelet.admit(pod)
        granted = pod.phase == "Running" and len(pod.result.ids.get(resource, ())) == count
        self.verdict(granted and pod.result.error is None, f"{pod.phase} {pod.message} {pod.results}")
        return pod

    def delete(self, pod: Pod) -> None:
        """Delete a pod."""
        self.screen.do(f"delete pod {pod.key}")
        self.kubelet.delete(pod)

    def bind(self, address: str, driver: str) -> None:
        """Bind a function to another driver."""
        self.screen.do(f"bind {address} to {driver}")
        self.host.bind(address, driver)

    async def show_reason(self, device_id: str, code: str) -> None:
        """Show why a device is Unhealthy, as soon as it is for this Reason."""
        self.screen.show(f"{device_id}: {await self.stage.reason(device_id, code)}")

    def show_container(self, pod: Pod) -> None:
        """Show what the container of a pod gets."""
        envs = [f"env   {key}={value}" for key, value in pod.result.envs.items()]
        nodes = [f"node  {inside}  {permissions}" for _, inside, permissions in pod.result.devices]
        self.screen.show("\n".join(["its container gets", *envs, *nodes]))

    def show_capacity(self, *resources: str) -> None:
        """Show what the Node object would say of the resources."""
        rows = [(name, *map(str, self.kubelet.capacity(name))) for name in resources]
        self.screen.table(("RESOURCE", "CAPACITY", "ALLOCATABLE"), rows)


class Step(NamedTuple, Generic[T]):
    """A numbered step of the story."""

    title: str
    play: Callable[[T], Awaitable[None]]
