# SPDX-License-Identifier: Apache-2.0
"""A short run passes; a run detects a device with two owners and a free device that stays Unhealthy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import ContainerResult, ListedDevice, Pod
from tests.blackbox.boards import GPU, USB
from tests.chaos.pods import machines, run
from tests.chaos.pods.__main__ import main
from tests.chaos.pods.board import PAIR, Board
from tests.chaos.pods.machines import Given, Machine

SEED, SECONDS = 5, 5.0
FIRST, SECOND = "0000:50:00.0", "0000:50:00.1"  # of one group


@pytest.fixture
def board(tmp_path: Path, loop_may_block: None) -> Board:
    """A node on which nothing runs, whose files are written on the loop."""
    return Board(tmp_path, ("group",))


@pytest.fixture
async def kubelet(board: Board) -> FakeKubelet:
    """One that was told that all of it is Healthy."""
    kubelet = FakeKubelet(board.node.root)
    kubelet.paths.plugins.mkdir(parents=True)
    for resource in board.offered():
        tell(kubelet, board, resource, ())
    return kubelet


def tell(kubelet: FakeKubelet, board: Board, resource: str, unhealthy: Iterable[str]) -> None:
    """The kubelet gets a list of the resource."""
    ids = [function.address for function in board.functions.values() if function.resource == resource]
    devices = [ListedDevice(each, "Unhealthy" if each in unhealthy else "Healthy") for each in ids]
    kubelet.state.receive_list(resource, 0, tuple(devices))


def machine(name: str, *units: str) -> Machine:
    return Machine(Pod("ns", name, []), 1, Given(frozenset(units), frozenset()))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_short_run_violates_no_rule(loop_may_block: None) -> None:
    report = await run.run_faults(SEED, ("group",), SECONDS)
    assert report.broken == "", "\n".join(report.timeline)
    assert report.machines > 0 and len(report.rest) == 2


async def test_a_free_node_that_is_told_healthy_is_at_rest(board: Board, kubelet: FakeKubelet) -> None:
    assert board.unhealthy(kubelet, ()) == []


async def test_what_stays_unhealthy_at_rest_is_told(board: Board, kubelet: FakeKubelet) -> None:
    tell(kubelet, board, PAIR, {SECOND})
    assert board.unhealthy(kubelet, ()) == [f"{PAIR} {SECOND}: ['Unhealthy']"]
    assert board.unhealthy(kubelet, {"50"}) == []


async def test_what_is_not_listed_at_rest_is_told(board: Board, kubelet: FakeKubelet) -> None:
    kubelet.state.receive_list(GPU, 0, ())
    assert board.unhealthy(kubelet, {"20", "30"}) == [f"{GPU} 0000:40:00.0: []"]


async def test_what_is_healthy_beside_what_somebody_has_is_told(board: Board, kubelet: FakeKubelet) -> None:
    lying = [f"{PAIR} {SECOND}: Healthy, and 50 has an owner"]
    assert board.offered_again(kubelet, {"50"}, {FIRST}) == lying
    assert board.offered_again(kubelet, {"50"}, {FIRST, SECOND}) == []
    tell(kubelet, board, PAIR, {SECOND})
    assert board.offered_again(kubelet, {"50"}, {FIRST}) == []


def test_a_group_that_two_machines_have_is_seen() -> None:
    found = machines.shared([machine("a", "20"), machine("b", "30"), machine("c", "20", "8")])
    assert [text.partition(":")[0] for text in found] == ["20 has 2 owners"]
    assert "ns/a" in found[0] and "ns/c" in found[0]


def test_a_usb_device_that_two_machines_have_is_seen() -> None:
    assert len(machines.shared([machine("a", "usb:K1"), machine("b", "usb:K1")])) == 1


def test_who_is_told_to_end_is_an_owner_while_something_is_open() -> None:
    old, new = machine("old", "20"), machine("new", "20")
    old.open.add("0000:20:00.0")
    old.ending = True
    assert len(machines.shared([old, new])) == 1
    old.open.clear()
    assert machines.shared([old, new]) == []
    assert machines.owned([old]) == {"20"}


def test_what_a_pod_was_given_of_one_group_is_one_unit(board: Board) -> None:
    pod, result = Pod("ns", "a", []), ContainerResult("c0")
    result.ids = {PAIR: (FIRST, SECOND), USB: ("0000:20:00.2",)}
    pod.results = {"c0": result}
    assert machines.given(pod, board).units == {"50", "20"}


@pytest.mark.parametrize("mode", ["group,bundle", "day"])
def test_modes_that_make_no_sense_are_refused(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--mode", mode])
    assert "error: argument --mode" in capsys.readouterr().err
