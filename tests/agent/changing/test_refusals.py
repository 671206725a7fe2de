# SPDX-License-Identifier: Apache-2.0
"""What the kernel refuses: it holds up nothing else, comes again ever later, and is forgotten."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nodeagent.base import log
from nodeagent.base.timeouts import Backoff
from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.spec import MdevSpec, Spec, WantedType
from nodeagent.model.status import ResultsStatus
from nodeagent.policy.change import ownership
from nodeagent.sim import files
from nodeagent.sim.mdev import FAILING, Card, Type, create_file, fail_create
from tests.agent.changing.changing import FIRST, MACHINE, SLOW, Changing, node, t4
from tests.conftest import Said
from tests.sim.vfs import vf_addresses

pytestmark = pytest.mark.usefixtures("loop_may_block")  # the simulated kernel works in the same loop


def uuid(type_id: str, index: int) -> str:
    return ownership.build_uuid(MACHINE, FIRST, type_id, index)


def failing(changing: Changing, instance: str) -> None:
    """From now on each write to the instance's file ``remove`` fails."""
    path = changing.root.path(f"/sys/bus/mdev/devices/{instance}/remove")
    files.remove(path)
    files.link(path, FAILING[errno.EIO])


async def test_vfs_that_fail_hold_up_no_other_of_their_card(tmp_path: Path, said: Said) -> None:
    vfs = vf_addresses(FIRST, 4)
    async with node(tmp_path, [Card(FIRST, (Type("nvidia-5", 4),), vfs=vfs)], "nvidia-5") as changing:
        for vf in vfs[:2]:
            fail_create(changing.cards.host, vf, "nvidia-5", errno.EIO)
        changing.forget(backoff=SLOW)
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-5", 2))
            await changing.until_at_rest()
            assert [each.action.device for each in changing.plan.waiting] == list(vfs[:2])
            assert changing.status.writes == 4
            assert changing.status.results == (ResultsStatus("create-mdev", 2, 2),)
            assert (changing.status.waiting, len(changing.status.failing)) == ((), 2)
            assert len(said(log.ACTION_FAILED)) == 1
            assert said(log.ACTION_WAITING) == []


async def test_an_instance_that_cannot_be_removed_holds_up_no_other(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-223") as changing:
        changing.forget(backoff=SLOW)
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-223", 8))
            failing(changing, uuid("nvidia-223", 0))
            changing.want()
            await changing.until_counts((FIRST, "nvidia-223", 1))
            await changing.until_at_rest()
            assert list(changing.cards.instances) == [uuid("nvidia-223", 0)]


async def test_a_parent_that_fails_is_asked_once_a_turn(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-222") as changing:
        fail_create(changing.cards.host, FIRST, "nvidia-222", errno.EIO)
        changing.forget(backoff=SLOW)
        async with changing.run():
            await changing.until(lambda: bool(changing.status.failing))
            await changing.until_at_rest()
            assert changing.status.writes == 1


async def test_instances_that_die_at_once_are_made_anew_ever_more_slowly(tmp_path: Path, said: Said) -> None:
    async with node(tmp_path, t4(FIRST)) as changing:
        changing.cards.kernel.stillborn = True
        changing.forget(backoff=Backoff(first=0.1, limit=300.0))
        one = (WantedType("nvidia-228", 1),)
        changing.publish(spec=Spec(mdevs=MdevSpec(manage=True, types=one)))
        async with changing.run():
            await changing.until(lambda: [each.tries for each in changing.status.failing] == [3])
        assert len(said(log.ACTION_FAILED)) == 1


async def test_what_is_not_wanted_any_more_fails_no_more(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-223") as changing:
        fail_create(changing.cards.host, FIRST, "nvidia-223", errno.EIO)
        fail_create(changing.cards.host, FIRST, "nvidia-222", errno.EIO)
        changing.forget(backoff=SLOW)
        async with changing.run():
            await changing.until(lambda: bool(changing.status.failing))
            changing.want("nvidia-228")
            await changing.until_counts((FIRST, "nvidia-228", 2))
            await changing.until(lambda: not changing.status.failing)
            changing.want("nvidia-222")
            await changing.until(lambda: bool(changing.status.failing))
            changing.publish(spec=Spec())
            await changing.until(lambda: not changing.status.failing)


async def test_what_is_refused_late_when_nothing_is_managed_any_more_does_not_stay(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing:
        path = create_file(changing.cards.host, FIRST, "nvidia-228")
        files.remove(path)
        os.mkfifo(path)
        changing.forget(deadline=0.1, backoff=SLOW)
        async with changing.run():
            await changing.until(lambda: len(changing.status.stuck) == 1)
            changing.publish(spec=Spec())
            await changing.until(lambda: changing.plan.cards == ())
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            await changing.until(lambda: not changing.status.in_progress)
            await changing.until(lambda: not changing.status.failing)
            os.close(reader)


async def test_what_waits_is_told_although_something_else_on_its_card_fails(
    tmp_path: Path, said: Said
) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-223") as changing:
        changing.forget(backoff=SLOW)
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-223", 8))
            refused, held, late = (uuid("nvidia-223", index) for index in range(3))
            failing(changing, refused)
            changing.hold(held, late)
            changing.want("nvidia-228")
            await changing.until_counts((FIRST, "nvidia-223", 3))
            await changing.until_at_rest()
            assert len(said(log.ACTION_WAITING)) == 2
            changing.publish(allocations=Allocations.of({}, Knowledge.UNKNOWN))
            await changing.until(lambda: len(said(log.ACTION_WAITING)) == 4)
            assert not any(refused in str(line["action"]) for line in said(log.ACTION_WAITING))


async def test_what_was_refused_once_and_is_open_now_is_noticed_when_it_is_closed(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-223") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-223", 8))
        opened = uuid("nvidia-223", 0)
        failing(changing, opened)
        changing.want("nvidia-228")
        await changing.until(lambda: bool(changing.status.failing))
        changing.cards.hold(opened)
        path = changing.root.path(f"/sys/bus/mdev/devices/{opened}/remove")
        files.remove(path)
        files.write(path, "")
        await changing.until(lambda: opened in changing.now.open)
        await changing.until(lambda: opened in changing.releases.awaited.get())
        changing.cards.release(opened)
        await changing.until_counts((FIRST, "nvidia-228", 2))
