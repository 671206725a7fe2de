# SPDX-License-Identifier: Apache-2.0
"""What was on the cards before decides nothing: a card that is to be emptied shows its room afterwards."""

from __future__ import annotations

from itertools import product

import pytest

from nodeagent.model.allocation import Allocations
from nodeagent.sim.mdev import Card
from tests.facts import each_names
from tests.policy.change.splitting import planned, settle, short, t4, wanted
from tests.sim.mdevs import ModelKernel

WISH = wanted("222", "228")


def cards(off: int | None) -> list[Card]:
    """Three T4; one has no room for the first of the wanted types, also while it is empty."""
    found = [t4(1), t4(2), t4(3)]
    if off is not None:
        found[off].off = frozenset({"nvidia-222"})
    return found


@pytest.mark.parametrize("off", [None, 0, 1, 2])
@pytest.mark.parametrize("before", [each for each in product(["", "223"], repeat=3) if any(each)])
def test_the_end_does_not_depend_on_what_was_there_before(off: int | None, before: tuple[str, ...]) -> None:
    fresh = ModelKernel(cards(off))
    settle(fresh, WISH)
    used = ModelKernel([t4(1), t4(2), t4(3)])
    for card, type_id in zip(used.cards, before, strict=True):
        if type_id:
            only = ModelKernel([card])
            settle(only, wanted(type_id))
            for uuid, (parent, kind) in only.instances.items():
                used.create(parent, kind, uuid)
    for card, like in zip(used.cards, cards(off), strict=True):
        card.off = like.off
    settle(used, WISH)
    assert short(used) == short(fresh)


def test_until_a_card_is_empty_others_get_what_does_not_depend_on_it() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("223"))
    kernel.cards += [t4(2), t4(3, "228")]
    plan = planned(kernel, WISH)
    made = {step.action.card for step in plan.steps if step.action.kind == "create-mdev"}
    assert made == {"0000:03:00.0"}
    waits = next(card for card in plan.cards if card.address == "0000:02:00.0")
    assert waits.types == ()
    each_names(waits.notes, ("0000:01:00.0",))


def test_a_card_that_waits_for_a_holder_keeps_the_others_from_nothing() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("223"))
    for uuid in kernel.instances:
        kernel.hold(uuid)
    kernel.cards.append(t4(2))
    settle(kernel, WISH)
    assert short(kernel) == ["8×223", "2×228"]
    for uuid in [*kernel.held]:
        kernel.release(uuid)
    settle(kernel, WISH)
    assert short(kernel) == ["16×222", "2×228"]


def test_while_nobody_knows_who_holds_what_the_others_get_theirs() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("223"))
    kernel.cards.append(t4(2))
    settle(kernel, WISH, allocations=Allocations())
    assert short(kernel) == ["8×223", "2×228"]
