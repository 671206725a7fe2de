# SPDX-License-Identifier: Apache-2.0
"""The node of a run and its devices: boards whose functions share an IOMMU group.

Three boards have a GPU and a USB function, which are two resources; two boards have a pair of one resource;
one function is alone. What one machine alone may have is called a unit here: an IOMMU group, by its number,
or a USB device. A mode changes how all of it is offered. Knows no pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import NamedTuple

from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.boards import GPU, LONE, LONE_AT, USB, add_usb
from tests.blackbox.harness import Node, health
from tests.blackbox.plugs import ONE, SET
from tests.chaos.pods import sticks
from tests.chaos.pods.sticks import Sticks

Modes = Collection[str]
MODES = ("group", "bundle", "cdi", "iommufd", "usb")
PAIR = "example.com/pair"
_IDS = {GPU: "1eb8", USB: "1ad8", LONE: "1ad9", PAIR: "1eb9"}
_OPTIONS = {"bundle": "isolation: bundle", "cdi": "cdi: true", "iommufd": "iommufd: only"}
_WANTS = (
    *({GPU: 1}, {USB: 1}, {GPU: 1, USB: 1}, {GPU: 1, USB: 1}, {PAIR: 1}, {PAIR: 2}, {LONE: 1}),
    *({GPU: 1, PAIR: 1}, {GPU: 1, LONE: 1}),
)
_USB_WANTS = ({ONE: 1}, {SET: 1}, {GPU: 1, ONE: 1}, {SET: 1, PAIR: 1})


class Function(NamedTuple):
    """One PCI function: its group as a unit, and the resource as which it is offered."""

    address: str
    unit: str
    resource: str


class Board:
    """The node with its devices and its configuration; ``away`` are the functions that are not there."""

    def __init__(self, root: Path, modes: Modes) -> None:
        self.modes = modes
        self.node = Node(root)
        if "iommufd" in modes:
            self.node.host = SimulatedHost(root, numa_nodes=(0, 1), cdev=True)
        self.functions: dict[str, Function] = {}
        self.away: set[str] = set()
        self.pulled = 0  # how often something was
        self.sticks = Sticks(self.node)
        self._plug_in()
        self.node.configure(_rules(modes))

    def _plug_in(self) -> None:
        for group in (20, 30, 40):
            self._add(f"0000:{group}:00.0", group, GPU)
            self._add(f"0000:{group}:00.2", group, USB)
        for group in (50, 60):
            self._add(f"0000:{group}:00.0", group, PAIR)
            self._add(f"0000:{group}:00.1", group, PAIR)
        self._add(LONE_AT, 8, LONE)
        if "usb" in self.modes:
            self.sticks.plug_all()

    def _add(self, address: str, group: int, resource: str) -> None:
        if resource in (USB, LONE):
            add_usb(self.node, address, group, _IDS[resource])
        else:
            self.node.add_gpu(address, group, device=_IDS[resource])
        self.functions[address] = Function(address, str(group), resource)

    @property
    def wants(self) -> tuple[dict[str, int], ...]:
        """What pods ask for."""
        return (*_WANTS, *(_USB_WANTS if self.sticks.all else ()))

    @property
    def whole(self) -> bool:
        """True if all is there."""
        return not self.away and all(stick.number for stick in self.sticks.all)

    def offered(self) -> dict[str, int]:
        """Resource → how many devices of it the kubelet is told."""
        devices = {(self._device(function), function.resource) for function in self.functions.values()}
        return {**Counter(resource for _, resource in devices), **self.sticks.offered()}

    def _device(self, function: Function) -> str:
        """What stands for one device: of a bundle all functions of a resource and group."""
        return function.unit if "bundle" in self.modes else function.address

    def with_it(self, address: str) -> set[str]:
        """The addresses that a pod gets with this one."""
        given = self.functions[address]
        return {
            other.address
            for other in self.functions.values()
            if (self._device(other), other.resource) == (self._device(given), given.resource)
        }

    def pull(self, address: str) -> None:
        """The function leaves the node."""
        self.pulled += 1
        self.away.add(address)

    def plug(self, address: str) -> None:
        """It is back, on VFIO."""
        self.node.host.bind(address, "vfio-pci")
        self.away.discard(address)

    def free(self, owned: Collection[str], chance: Random) -> list[str]:
        """For each unit that is free when these are owned, a resource as which it can be asked for."""
        offered: dict[str, list[str]] = {}
        for function in self.functions.values():
            offered.setdefault(function.unit, []).append(function.resource)
        free = [chance.choice(several) for unit, several in offered.items() if unit not in owned]
        return free + self.sticks.free(owned)

    def is_free(self, resource: str, owned: Collection[str]) -> bool:
        """True if a unit is free when these are owned that can be asked for as this resource."""
        units = {each.unit for each in self.functions.values() if each.resource == resource}
        return not units <= set(owned) or resource in self.sticks.free(owned)

    def unhealthy(self, kubelet: FakeKubelet, owned: Collection[str]) -> list[str]:
        """What is free when these are owned, and yet not Healthy in the last lists."""
        found = []
        for address, function in self.functions.items():
            told = health(kubelet, function.resource)
            seen = [told[each] for each in self.with_it(address) if each in told]
            if function.unit not in owned and seen != ["Healthy"]:
                found.append(f"{function.resource} {address}: {seen}")
        return found + self.sticks.unhealthy(kubelet, owned)

    def offered_again(self, kubelet: FakeKubelet, owned: Collection[str], had: Collection[str]) -> list[str]:
        """What is Healthy in the last lists though its unit is owned by who has these functions, not it."""
        return [
            f"{function.resource} {address}: Healthy, and {function.unit} has an owner"
            for address, function in self.functions.items()
            if function.unit in owned and address not in had
            if "Healthy" in map(health(kubelet, function.resource).get, self.with_it(address))
        ]


def all_processes_are_seen(node: Node) -> None:
    """As a daemon sees them that runs in the host's PID namespace: the first one is there."""
    node.host.write_file("/proc/1/comm", "init")
    node.host.write_file("/proc/1/stat", f"1 (init) S 0 1 1 0 -1 0 {'0 ' * 10}1 0 0")
    files.directory(node.host.path("/proc/1/fd"))


def _rules(modes: Modes) -> str:
    options = "".join(f", {text}" for mode, text in _OPTIONS.items() if mode in modes)
    lines = [
        f'  - {{name: {resource}, pci: [{{devices: ["{device}"]}}]{options}}}\n'
        for resource, device in _IDS.items()
    ]
    return "resources:\n" + "".join(lines) + (sticks.RULES if "usb" in modes else "")
