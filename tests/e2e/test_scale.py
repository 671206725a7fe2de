# SPDX-License-Identifier: Apache-2.0
"""The real cluster side of 500 nodes and a real API server: what they ask of it, how soon they follow.

All nodes share one process and the machine with the API server, so moments show what both take together. The
figures of docs/scale.md are printed (``-s``). ``NODEAGENT_E2E_NODES`` is another number of nodes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from nodeagent.base.timeouts import Timeouts
from tests.e2e import building, waiting
from tests.e2e.certificates import Certificates
from tests.e2e.controlplane import ControlPlane
from tests.e2e.costs import Counters, Usage, measured
from tests.e2e.fleet import Fleet
from tests.e2e.namespace import traces

pytestmark = pytest.mark.long

COUNT = int(os.environ.get("NODEAGENT_E2E_NODES") or 500)
FOLLOWED = ("nodes", "kubevirts")
OWN = ("", "leases")  # what the API server asks of itself, and what is no object, such as its metrics
BUSY = "429"  # of a server that has no room for it now
QUIET = 20.0  # seconds; streams last for at least 240
EDITS, QUICK = 20, 50


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """The control plane with all Nodes; their daemons are not started yet."""
    programs = building.kubernetes(building.chosen(os.environ))
    with _directory() as base, _directory("/dev/shm") as nodes:  # in memory: so many nodes share no disk
        control = ControlPlane(base, programs, Certificates(base / "pki"))
        made = Fleet(nodes, control, COUNT)
        try:
            control.serve()
            made.prepare()
            yield made
        finally:
            made.stop()
            control.close()
    assert traces(base) == traces(nodes) == []


@contextmanager
def _directory(parent: str | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nodeagent-e2e-", dir=parent) as directory:
        yield Path(directory)


class Begun(NamedTuple):
    """The nodes, started once, and what that had the API server do and use."""

    fleet: Fleet
    asked: Counters
    used: Mapping[str, Usage]


@pytest.fixture(scope="module")
def begun(fleet: Fleet) -> Begun:
    """All have started at once, with nothing on record, and follow the cluster."""
    waiting.pause(2.0)  # the API server puts its own house in order
    with measured("no nodes", fleet.programs):
        waiting.pause(5.0)
    before = Counters.of(fleet.api)
    with measured("start of all at once", fleet.programs) as used:
        began = fleet.start()
    heard = [each - began for each in fleet.heard()]
    print(f"\nanswered after {heard[0]:.1f} s (first) to {heard[-1]:.1f} s (last)", end="")
    waiting.until(lambda: _streams(fleet, before) == dict.fromkeys(FOLLOWED, COUNT), "all streams are open")
    return Begun(fleet, Counters.of(fleet.api).since(before), used)


def _streams(fleet: Fleet, before: Counters) -> Mapping[str, int]:
    return Counters.of(fleet.api).since(before).streams


def test_nodes_that_start_all_at_once_ask_for_two_lists_and_two_streams_each(begun: Begun) -> None:
    _, asked, used = begun
    followed = {key: count for key, count in asked.requests.items() if key[1] in FOLLOWED}
    refused = {key: count for key, count in followed.items() if key[2] == BUSY}
    lists = {key: count for key, count in followed.items() if key not in refused}
    assert lists == {("LIST", resource, "200"): COUNT for resource in FOLLOWED}
    assert sum(refused.values()) < COUNT, "who is refused waits as long as it is told to"
    assert used["kube-apiserver"].cpu < 0.5 + 0.01 * COUNT


def test_nobody_asks_anything_while_nothing_changes(begun: Begun) -> None:
    fleet = begun.fleet
    before = Counters.of(fleet.api)
    with measured("at rest", fleet.programs) as used:
        waiting.pause(QUIET)
    after = Counters.of(fleet.api).since(before)
    assert {key for key in after.requests if key[1] not in OWN} == set()
    assert not after.streams
    assert used[fleet.name].cpu < 0.001 * COUNT


def test_an_edit_is_soon_in_force_on_all_nodes(begun: Begun) -> None:
    fleet = begun.fleet
    spreads = []
    with measured(f"{EDITS} edits", fleet.programs) as used:
        for number in range(1, EDITS + 1):
            began = fleet.edit(number)
            _, *moments = fleet.all_have(number)
            spreads.append([moment - began for moment in moments])
    for name, times in zip(("first", "half", "all"), zip(*spreads, strict=True), strict=True):
        median, worst = statistics.median(times) * 1000, max(times) * 1000
        print(f"\n  in force on {name}: median {median:.0f} ms, worst {worst:.0f} ms", end="")
    assert statistics.median(spread[-1] for spread in spreads) < 1 + 0.01 * COUNT
    assert used["kube-apiserver"].cpu / EDITS < 0.05 + 0.0002 * COUNT


def test_all_nodes_have_the_last_of_many_quick_edits(begun: Begun) -> None:
    fleet = begun.fleet
    numbers = range(101, 101 + QUICK)
    with measured(f"{QUICK} quick edits", fleet.programs):
        for number in numbers:
            fleet.edit(number)
        ended = time.monotonic()
        spread = fleet.all_have(numbers[-1])
    print(f"\n  the last is in force on all {(spread.last - ended) * 1000:.0f} ms after the end", end="")
    assert spread.last - ended < 1 + 0.01 * COUNT
    seen = [fleet.reached(number) for number in numbers]
    taken = sum(each.nodes for each in seen if each is not None) / COUNT
    print(f"\n  of {QUICK} a node has {taken:.1f} in force", end="")


def test_nodes_that_know_the_cluster_from_before_spread_their_start(begun: Begun) -> None:
    fleet = begun.fleet
    fleet.stop()
    with measured("start of all, with a record", fleet.programs):
        began = fleet.start()
    heard = [each - began for each in fleet.heard()]
    busiest = max(sum(begin <= each < begin + 1 for each in heard) for begin in heard)
    print(f"\n  answered from {heard[0]:.1f} to {heard[-1]:.1f} s, at most {busiest} in a second", end="")
    assert heard[-1] - heard[0] > Timeouts().cluster_start_spread / 2
    assert busiest < COUNT / 2
