# SPDX-License-Identifier: Apache-2.0
"""Scan requests: keys that are due, and verdicts on PCI errors."""

from __future__ import annotations

import anyio
import pytest

from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress

A = PciAddress("0000:01:00.0")


def test_everything_is_due_at_the_start_and_nothing_after_that() -> None:
    requests = ScanRequests()
    assert [requests.due, requests.take(), requests.due, requests.take()] == [
        True,
        None,
        False,
        frozenset(),
    ]


def test_keys_are_gathered_without_doubles_until_they_are_taken() -> None:
    requests = ScanRequests()
    requests.take()
    for key in ("a", "b", "a"):
        requests.add(key)
    assert requests.take() == frozenset({"a", "b"})
    assert not requests.due


def test_everything_holds_each_single_thing() -> None:
    requests = ScanRequests()
    requests.take()
    requests.add("a")
    requests.add(None)
    requests.add("b")
    assert requests.take() is None


async def test_a_wake_for_what_is_due_already_is_noticed_too() -> None:
    requests = ScanRequests()
    seen = requests.version
    requests.add("a")
    with anyio.fail_after(5):
        await requests.newer(seen)
    assert requests.version != seen


def test_a_recovery_wakes_with_its_function_and_can_be_taken_back() -> None:
    requests = ScanRequests()
    requests.take()
    requests.recovery(A, Recovery.RUNNING)
    assert (requests.take(), dict(requests.recoveries)) == (frozenset({A}), {A: Recovery.RUNNING})
    requests.recovery(A, None)
    assert (requests.take(), dict(requests.recoveries)) == (frozenset({A}), {})


def test_a_recovery_is_kept_until_its_function_is_unbound_or_gone() -> None:
    requests = ScanRequests()
    for driver, kept in (("vfio-pci", {A: Recovery.FAILED}), (None, {})):
        requests.recovery(A, Recovery.FAILED)
        requests.settle(Host(functions={A: PciFunction(A, driver=driver)}))
        assert requests.recoveries == kept
    requests.recovery(A, Recovery.FAILED)
    requests.settle(Host())
    assert requests.recoveries == {}


@pytest.mark.parametrize("left", [0, 1], ids=["a count of zero", "a count that a driver before has left"])
def test_a_recovery_is_kept_until_its_function_was_opened_anew_and_answers(left: int) -> None:
    requests = ScanRequests()
    requests.recovery(A, Recovery.FAILED)
    for enable, answers, kept in (
        (left + 1, True, True),  # by whoever had it open when it failed
        (left, True if left else None, True),
        (left + 1, False, True),
        (left + 1, True, False),
    ):
        card = PciFunction(A, driver="vfio-pci", vfio=True, enable=enable, answers=answers)
        requests.settle(Host(functions={A: card}))
        assert (A in requests.recoveries) is kept
