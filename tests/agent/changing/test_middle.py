# SPDX-License-Identifier: Apache-2.0
"""In the middle of the work on a card: others take room, readings are half old, each change is told once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.base import log
from nodeagent.model.host import MdevType
from nodeagent.model.spec import MdevSpec, Spec, WantedType
from tests.agent.changing.changing import FIRST, SECOND, node, t4
from tests.conftest import Said
from tests.facts import each_names

pytestmark = pytest.mark.usefixtures("loop_may_block")  # the simulated kernel works in the same loop

FOREIGN = "11111111-2222-4333-8444-555555555555"


async def test_nothing_more_is_made_once_somebody_else_has_made_an_mdev_on_the_card(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST, SECOND), "nvidia-222") as changing, changing.run():
        await changing.until(lambda: len(changing.cards.types_on(FIRST)) >= 3)
        before = len(changing.cards.types_on(FIRST))
        changing.cards.create(FIRST, "nvidia-222", FOREIGN)
        await changing.until_at_rest()
        assert len(changing.cards.types_on(FIRST)) <= before + 2  # theirs, and one that was being written
        assert len(changing.cards.types_on(SECOND)) == 16
        changing.cards.kernel.remove(FOREIGN)
        changing.cards.show()
        await changing.until_counts((FIRST, "nvidia-222", 16), (SECOND, "nvidia-222", 16))


async def test_room_that_was_read_in_the_middle_of_our_work_is_no_problem(tmp_path: Path, said: Said) -> None:
    """What is counted and what is free are read one after the other, and may lack each other's newest."""
    everything = Spec(mdevs=MdevSpec(manage=True, types=(WantedType("nvidia-222", 16),)))
    async with node(tmp_path, t4(FIRST)) as changing, changing.run() as group:
        changing.publish(spec=everything)
        await changing.until(lambda: FIRST in changing.runner.working and bool(changing.cards.instances))
        host = changing.now.host
        full = tuple(MdevType(each.type_id, each.name, 0) for each in host.mdev_parents[FIRST])
        changing.publish(host=replace(host, mdev_parents={FIRST: full}))
        changing.loop.one_turn(group)
        assert changing.plan.problems == ()
        await changing.until_counts((FIRST, "nvidia-222", 16))
        await changing.until_at_rest()
        assert said(log.PLAN_PROBLEM) == []


async def test_what_does_not_fit_is_told_when_the_work_is_done(tmp_path: Path, said: Said) -> None:
    too_many = Spec(mdevs=MdevSpec(manage=True, types=(WantedType("nvidia-228", 3),)))
    async with node(tmp_path, t4(FIRST)) as changing, changing.run():
        changing.publish(spec=too_many)
        await changing.until_counts((FIRST, "nvidia-228", 2))
        await changing.until_at_rest()
        await changing.until(lambda: bool(changing.plan.problems))
        each_names([each.message for each in changing.plan.problems], (FIRST, 3, "nvidia-228", 2))
        assert len(said(log.PLAN_PROBLEM)) == 1


async def test_what_was_told_before_the_work_is_not_told_anew_for_a_reading_in_the_middle(
    tmp_path: Path, said: Said
) -> None:
    too_many = Spec(mdevs=MdevSpec(manage=True, types=(WantedType("nvidia-228", 3),)))
    async with node(tmp_path, t4(FIRST)) as changing, changing.run() as group:
        changing.publish(spec=too_many)
        await changing.until(lambda: FIRST in changing.runner.working)
        host = changing.now.host
        full = tuple(MdevType(each.type_id, each.name, 0) for each in host.mdev_parents[FIRST])
        changing.publish(host=replace(host, mdevs={}, mdev_parents={FIRST: full}))
        changing.loop.one_turn(group)
        each_names([each.message for each in changing.plan.problems], (FIRST, 3, "nvidia-228", 2))
        await changing.until_counts((FIRST, "nvidia-228", 2))
        await changing.until_at_rest()
        assert len(said(log.PLAN_PROBLEM)) == 1


async def test_each_change_is_told_once(tmp_path: Path, said: Said) -> None:
    async with node(tmp_path, t4(FIRST, SECOND), "nvidia-222") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-222", 16), (SECOND, "nvidia-222", 16))
        changing.want("nvidia-228")
        await changing.until_counts((FIRST, "nvidia-228", 2), (SECOND, "nvidia-228", 2))
        await changing.until_at_rest()
        told = Counter(each["action"] for each in said(log.ACTION_DONE))
        assert (len(told), set(told.values())) == (32 + 32 + 4, {1})


@pytest.mark.parametrize(
    "later", [None, (WantedType("nvidia-228", 2),)], ids=["nothing is wanted", "what fits is wanted"]
)
async def test_what_did_not_fit_is_no_problem_any_more_when_it_is_not_wanted_in_the_middle_of_the_work(
    tmp_path: Path, later: tuple[WantedType, ...] | None
) -> None:
    too_many = Spec(mdevs=MdevSpec(manage=True, types=(WantedType("nvidia-228", 3),)))
    async with node(tmp_path, t4(FIRST)) as changing, changing.run() as group:
        changing.publish(spec=too_many)
        await changing.until(lambda: FIRST in changing.runner.working and bool(changing.plan.problems))
        wanted = MdevSpec() if later is None else MdevSpec(manage=True, types=later)
        changing.publish(spec=Spec(mdevs=wanted))
        changing.loop.one_turn(group)
        assert changing.plan.problems == ()
        await changing.until_at_rest()
        assert changing.plan.problems == ()
