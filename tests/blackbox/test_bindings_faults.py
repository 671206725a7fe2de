# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong at whichever write: a group has the drivers that are wished, or its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial

import pytest

from tests.blackbox.harness import Daemon, Node, eventually
from tests.sim.drivers import SimulatedDrivers, simulated

CARDS = "example.com/card"
RESOURCE = f"""apiVersion: nodeagent/v1
discovery: {{enabled: false}}
resources: [{{name: {CARDS}, pci: [{{vendors: ["8086"]}}]}}]
"""
RULE = 'passthrough: [{match: [{vendors: ["8086"], addresses: ["*.0"]}]}]\n'
GROUPS, FUNCTIONS = 16, 4
PATIENCE = 45.0  # seconds; some 300 writes, each read back, among fifteen other tests: 10 on a quiet machine
FORTH, BACK = ("override", "unbind", "probe"), ("clear", "release", "reprobe")


def add_groups(node: Node, count: int = GROUPS, functions: int = FUNCTIONS) -> list[list[str]]:
    """Groups of functions on a driver of the host; their addresses."""
    groups = [[f"0000:{0x20 + number:02x}:00.{part}" for part in range(functions)] for number in range(count)]
    for number, addresses in enumerate(groups):
        for address in addresses:
            node.host.add_function(
                address, vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=10 + number
            )
    return groups


def everything(groups: list[list[str]]) -> list[str]:
    return [address for group in groups for address in group]


def state(drivers: SimulatedDrivers, group: list[str]) -> str:
    """How a group stands: as "wished", as "before", or "torn"."""
    found = {(drivers.driver(address), drivers.override(address)) for address in group}
    if found == {("vfio-pci", "vfio-pci")}:
        return "wished"
    return "before" if found == {("e1000e", "")} else "torn"


def states(drivers: SimulatedDrivers, groups: list[list[str]]) -> list[str]:
    return [state(drivers, group) for group in groups]


def faulty(groups: list[list[str]], kinds: tuple[str, ...]) -> Mapping[int, tuple[str, str]]:
    """Group → the write that is to fail in it: each write of a group's in another group."""
    places = [(kind, part) for part in range(len(groups[0])) for kind in kinds]
    return {number: (kind, groups[number][part]) for number, (kind, part) in enumerate(places)}


def all_are(drivers: SimulatedDrivers, groups: list[list[str]], wanted: str) -> bool:
    return states(drivers, groups) == [wanted] * len(groups)


async def until_refused(node: Node, groups: list[list[str]], numbers: Mapping[int, object]) -> None:
    """Wait until the status names just these groups as refused."""
    cards = {groups[number][0] for number in numbers}
    await node.until_told(
        lambda told: {each["card"] for each in told["changes"]["failing"]} == cards, PATIENCE
    )


def _stands(drivers: SimulatedDrivers, group: list[str], wanted: str) -> bool:
    return state(drivers, group) == wanted


async def each_is(drivers: SimulatedDrivers, groups: list[list[str]], wanted: list[str]) -> None:
    """Each group stands as wanted, but for the moments in which what was refused is tried again."""
    for group, state_wanted in zip(groups, wanted, strict=True):
        await eventually(partial(_stands, drivers, group, state_wanted), PATIENCE)


async def test_sixty_four_functions_in_sixteen_groups_are_bound_and_given_back(node: Node) -> None:
    groups = add_groups(node)
    node.configure(RESOURCE + RULE)
    listed = {CARDS: GROUPS * FUNCTIONS}
    async with simulated(node.host, *everything(groups)) as drivers, node.running(listed=listed):
        await eventually(lambda: states(drivers, groups) == ["wished"] * GROUPS, PATIENCE)
        assert len(drivers.writes) == GROUPS * FUNCTIONS * len(FORTH)
        node.configure(RESOURCE)
        await eventually(lambda: states(drivers, groups) == ["before"] * GROUPS, PATIENCE)
        assert len(drivers.writes) == GROUPS * FUNCTIONS * (len(FORTH) + len(BACK))


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("fault", ["lost", "torn", "undone"])  # before, in, after
async def test_a_group_in_which_one_write_fails_is_what_it_was_before(node: Node, fault: str) -> None:
    groups = add_groups(node)
    node.configure(RESOURCE + RULE)
    async with simulated(node.host, *everything(groups)) as drivers:
        failing = faulty(groups, FORTH)
        for kind, address in failing.values():
            drivers.faults.set(f"{kind}:{address}", fault)
        async with node.running(listed={CARDS: GROUPS * FUNCTIONS}):
            await until_refused(node, groups, failing)
            wanted = ["before" if number in failing else "wished" for number in range(GROUPS)]
            await each_is(drivers, groups, wanted)
            for kind, address in failing.values():
                drivers.faults.clear(f"{kind}:{address}")
            await eventually(lambda: states(drivers, groups) == ["wished"] * GROUPS, PATIENCE)


@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_a_group_in_which_one_write_back_fails_stays_bound(node: Node) -> None:
    groups = add_groups(node)
    node.configure(RESOURCE + RULE)
    listed = {CARDS: GROUPS * FUNCTIONS}
    async with simulated(node.host, *everything(groups)) as drivers, node.running(listed=listed):
        await eventually(lambda: states(drivers, groups) == ["wished"] * GROUPS, PATIENCE)
        failing = faulty(groups, BACK)
        for kind, address in failing.values():
            drivers.faults.set(f"{kind}:{address}", "lost")
        node.configure(RESOURCE)
        await until_refused(node, groups, failing)
        wanted = ["wished" if number in failing else "before" for number in range(GROUPS)]
        await each_is(drivers, groups, wanted)
        for kind, address in failing.values():
            drivers.faults.clear(f"{kind}:{address}")
        await eventually(lambda: states(drivers, groups) == ["before"] * GROUPS, PATIENCE)


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize(("fault", "kinds"), [("torn", BACK), ("undone", BACK[:2])])
async def test_a_group_in_which_somebody_interferes_with_one_write_back_is_bound_or_as_before(
    node: Node, fault: str, kinds: tuple[str, ...]
) -> None:
    """What is undone behind the last write is no doing of ours."""
    groups = add_groups(node)
    node.configure(RESOURCE + RULE)
    listed = {CARDS: GROUPS * FUNCTIONS}
    async with simulated(node.host, *everything(groups)) as drivers, node.running(listed=listed):
        await eventually(lambda: states(drivers, groups) == ["wished"] * GROUPS, PATIENCE)
        failing = faulty(groups, kinds)
        for kind, address in failing.values():
            drivers.faults.set(f"{kind}:{address}", fault)
        node.configure(RESOURCE)
        cards = {groups[number][0] for number, (kind, _) in failing.items() if kind == "reprobe"}
        await node.until_told(
            lambda told: (
                {each["card"] for each in told["changes"]["failing"]} == cards
                and not {*states(drivers, groups)} - {"wished", "before"}
                and {group[0] for group in groups if _stands(drivers, group, "wished")} == cards
            ),
            PATIENCE,
        )
        for kind, address in failing.values():
            drivers.faults.clear(f"{kind}:{address}")
        await eventually(lambda: states(drivers, groups) == ["before"] * GROUPS, PATIENCE)


def killing(daemon: Daemon, at: int, done: bool) -> Callable[[int, bool], None]:
    """Kill the daemon at that write: before it has its effect, which it has all the same, or after.

    After it the next write may have begun, in a process of its own that outlives the daemon.
    """

    def around(number: int, was_done: bool) -> None:
        if (number, was_done) == (at, done):
            daemon.send(signal.SIGKILL)

    return around
