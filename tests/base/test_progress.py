# SPDX-License-Identifier: Apache-2.0
"""Who owes the same step at three looks stands still; who takes one, or owes nothing, does not."""

from __future__ import annotations

import pytest

from nodeagent.base.progress import Debt, Progress

STUCK = {"it": "work"}


def looks(*steps: object) -> list[object]:
    """What is found at each look; a step None is no debt."""
    progress = Progress()
    return [progress.look({} if step is None else {"it": Debt(step, "work")}) for step in steps]


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        ((1, 1), {}),
        ((1, 1, 1), STUCK),
        ((1, 1, 2), {}),
        ((1, 1, 2, 2, 2), STUCK),
        ((1, 1, None, 1, 1), {}),
        ((1, 1, 1, None), {}),
        ((1, 1, 1, 2), {}),
        ((None, None, None), {}),
    ],
)
def test_three_looks_at_the_same_step_are_needed(steps: tuple[object, ...], last: object) -> None:
    assert looks(*steps)[-1] == last


def test_who_stands_still_does_not_hide_who_goes_on() -> None:
    progress = Progress()
    found = [progress.look({"still": Debt(0, "a"), "going": Debt(step, "b")}) for step in range(3)]
    assert found[-1] == {"still": "a"}
