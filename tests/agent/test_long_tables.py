# SPDX-License-Identifier: Apache-2.0
"""What one answer costs the loop where others' plugins have given 20,000 devices: steps, and no seconds.

Work that the interpreter does in C for a whole table counts as one step, and how much others load the machine
does not count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nodeagent.agent.forgotten import Forgotten
from nodeagent.agent.known import Known
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.desired import Desired
from nodeagent.model.host import Host
from nodeagent.model.ids import ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import turn

COUNT = 20_000
FEW = 1000  # steps of Python, whatever the number of devices
FILE = Checkpoint((1, 0, 0))
POD = Holder("ns", "p", ResourceName("other.example/port"))
MANY = {f"port-{number}": POD for number in range(COUNT)}


def steps(work: Callable[[], object]) -> int:
    """How often Python calls a function, or goes on with a generator."""
    count = 0

    def note(frame: object, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def decided(holders: dict[str, Holder]) -> Snapshot:
    return Snapshot(Host(), Desired(), allocations=Allocations(holders, Knowledge.COMPLETE))


def test_an_answer_that_says_what_the_last_one_did_is_told_on_as_it_is() -> None:
    known = Known()
    before = known.answered(MANY, {}, FILE, doubtful=False)
    for doubtful in (False, True):
        assert known.answered(MANY, before, FILE, doubtful=doubtful) is before
        assert steps(lambda: known.answered(MANY, before, FILE, doubtful=True)) < FEW


def test_an_answer_with_one_more_pod_costs_no_step_for_each_of_the_others() -> None:
    known = Known()
    before = known.answered(MANY, {}, FILE, doubtful=True)
    more = {**MANY, "port-new": replace(POD, pod="q")}
    found: list[Any] = []
    assert steps(lambda: found.append(known.answered(more, before, FILE, doubtful=True))) < FEW
    assert found == [more]
    after = Allocations(found[0])
    assert (
        steps(lambda: Forgotten(Timeouts().forgotten_container_end).note(Allocations(before), after, 0.0))
        < FEW
    )
    decision = turn.first(decided({**before}))
    assert steps(lambda: turn.following(decision, decided(more))) < FEW


def test_the_first_turn_takes_a_few_steps_for_each_device_that_others_have_given() -> None:
    assert steps(lambda: turn.first(decided(MANY))) < 5 * COUNT  # where all is asked for all of them it is 16
