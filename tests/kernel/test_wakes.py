# SPDX-License-Identifier: Apache-2.0
"""The cell between those who notice something and the one who scans."""

from __future__ import annotations

import anyio
import pytest

from nodeagent.kernel.wakes import Wakes
from nodeagent.model.host import Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress

A = PciAddress("0000:01:00.0")


def test_everything_is_due_at_the_start_and_nothing_after_that() -> None:
    wakes = Wakes()
    assert [wakes.due, wakes.take(), wakes.due, wakes.take()] == [True, None, False, frozenset()]


def test_keys_are_gathered_without_doubles_until_they_are_taken() -> None:
    wakes = Wakes()
    wakes.take()
    for key in ("a", "b", "a"):
        wakes.wake(key)
    assert wakes.take() == frozenset({"a", "b"})
    assert not wakes.due


def test_everything_holds_each_single_thing() -> None:
    wakes = Wakes()
    wakes.take()
    wakes.wake("a")
    wakes.wake(None)
    wakes.wake("b")
    assert wakes.take() is None


async def test_a_wake_for_what_is_due_already_is_noticed_too() -> None:
    wakes = Wakes()
    seen = wakes.version
    wakes.wake("a")
    with anyio.fail_after(5):
        await wakes.newer(seen)
    assert wakes.version != seen


def test_a_recovery_wakes_with_its_function_and_can_be_taken_back() -> None:
    wakes = Wakes()
    wakes.take()
    wakes.recovery(A, Recovery.RUNNING)
    assert (wakes.take(), dict(wakes.recoveries)) == (frozenset({A}), {A: Recovery.RUNNING})
    wakes.recovery(A, None)
    assert (wakes.take(), dict(wakes.recoveries)) == (frozenset({A}), {})


def test_a_recovery_is_kept_until_its_function_is_unbound_or_gone() -> None:
    wakes = Wakes()
    for driver, kept in (("vfio-pci", {A: Recovery.FAILED}), (None, {})):
        wakes.recovery(A, Recovery.FAILED)
        wakes.settle(Host(functions={A: PciFunction(A, driver=driver)}))
        assert wakes.recoveries == kept
    wakes.recovery(A, Recovery.FAILED)
    wakes.settle(Host())
    assert wakes.recoveries == {}


@pytest.mark.parametrize("left", [0, 1], ids=["a count of zero", "a count that a driver before has left"])
def test_a_recovery_is_kept_until_its_function_was_opened_anew_and_answers(left: int) -> None:
    wakes = Wakes()
    wakes.recovery(A, Recovery.FAILED)
    for enable, answers, kept in (
        (left + 1, True, True),  # by whoever had it open when it failed
        (left, True if left else None, True),
        (left + 1, False, True),
        (left + 1, True, False),
    ):
        card = PciFunction(A, driver="vfio-pci", vfio=True, enable=enable, answers=answers)
        wakes.settle(Host(functions={A: card}))
        assert (A in wakes.recoveries) is kept
