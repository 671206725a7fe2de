# SPDX-License-Identifier: Apache-2.0
"""What is wanted becomes what is, whatever comes in between; nothing is done that must not be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import anyio
import pytest

from nodeagent.agent.changing import ledger
from nodeagent.base import log
from nodeagent.kubelet.api.podresources import v1
from nodeagent.model.allocation import Allocations, Knowledge
from nodeagent.model.change import Ledger
from nodeagent.model.spec import PassthroughRule, PciSelector, Spec, SriovRule
from nodeagent.sim import files
from nodeagent.sim.mdev import Card, Type, fail_create, mend_create
from tests.agent.changing.changing import (
    FIRST,
    SECOND,
    SLOW,
    THIRD,
    Changing,
    node,
    t4,
    uuid,
)
from tests.conftest import Said
from tests.facts import names
from tests.kubelet.test_pod_resources import Answering, serving
from tests.sim.vfs import SimulatedVfs, add_sriov_manage, vf_addresses

pytestmark = pytest.mark.usefixtures("loop_may_block")  # the simulated kernel works in the same loop

NIC = "0000:05:00.0"
FOREIGN = "00000000-0000-4000-8000-000000000001"
VGPUS = (Type("1", 4, "NVIDIA A40-12Q"), Type("2", 2, "NVIDIA A40-24Q"))


def create_file(changing: Changing, card: str, type_id: str) -> Path:
    return Path(changing.root.path(f"/sys/class/mdev_bus/{card}/mdev_supported_types/{type_id}/create"))


async def test_three_cards_get_the_documented_types_with_one_write_each(tmp_path: Path) -> None:
    cards = t4(FIRST, SECOND, THIRD)
    async with node(tmp_path, cards, "nvidia-222", "nvidia-228") as changing, changing.run():
        await changing.until_counts(
            (FIRST, "nvidia-222", 16), (SECOND, "nvidia-228", 2), (THIRD, "nvidia-222", 16)
        )
        await changing.until_at_rest()
        assert changing.status.writes == changing.cards.writes == 34
        assert uuid(SECOND, "nvidia-228", 0) in changing.cards.instances


async def test_what_another_plugin_gave_right_before_is_not_removed(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-222") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-222", 16))
        given = uuid(FIRST, "nvidia-222", 3)
        resource = "nvidia.com/GRID_T4"
        device = v1.ContainerDevices(resource, [given])
        pod = v1.PodResources("vm", "ns", [v1.ContainerResources("c", [device])])
        answer = Answering([pod])
        directory = Path(changing.root.path("/var/lib/kubelet/pod-resources"))
        files.directory(str(directory))
        async with serving(directory, answer):
            changing.want("nvidia-228")
            await changing.until_counts((FIRST, "nvidia-222", 1))
            await changing.until_at_rest()
            assert changing.cards.instances.keys() == {given}


async def test_of_an_old_wish_nothing_is_made_any_more(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-222", "nvidia-223") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-222", 16))
        changing.want("nvidia-228")
        await changing.until_counts((FIRST, "nvidia-228", 2))
        await changing.until_at_rest()
        assert changing.cards.writes == 16 + 16 + 2


async def test_a_turn_with_nothing_new_plans_nothing_and_reads_nothing(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing, changing.run() as group:
        await changing.until_counts((FIRST, "nvidia-228", 2))
        await changing.until_at_rest()
        plan, scans, writes = changing.plan, changing.eyes.scans, changing.status.writes
        for _ in range(20):
            changing.eyes.snapshots.touch()
            changing.loop.one_turn(group)
            await anyio.lowlevel.checkpoint()
        assert changing.plan is plan
        assert (changing.eyes.scans, changing.status.writes) == (scans, writes)


async def test_a_card_that_fails_is_tried_again_and_delays_no_other(tmp_path: Path, said: Said) -> None:
    async with node(tmp_path, t4(FIRST, SECOND), "nvidia-223") as changing:
        fail_create(changing.cards.host, FIRST, "nvidia-223", errno.EIO)
        async with changing.run():
            await changing.until_counts((SECOND, "nvidia-223", 8))
            await changing.until(lambda: [each.tries >= 3 for each in changing.status.failing] == [True])
            (failing,) = changing.status.failing
            assert (failing.card, failing.type) == (FIRST, "nvidia-223")
            assert "Input/output error" in failing.message
            (line,) = said(log.ACTION_FAILED)
            assert line["pci_address"] == FIRST
            mend_create(changing.cards.host, FIRST, "nvidia-223")
            await changing.until_counts((FIRST, "nvidia-223", 8), (SECOND, "nvidia-223", 8))
            await changing.until(lambda: not changing.status.failing)


async def test_a_kernel_that_says_both_room_and_no_room_is_not_asked_in_a_loop(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-223") as changing:
        fail_create(changing.cards.host, FIRST, "nvidia-223", errno.ENOSPC)
        changing.forget(backoff=SLOW)
        async with changing.run():
            await changing.until(lambda: bool(changing.status.failing))
            await changing.until(lambda: not changing.runner.working and bool(changing.plan.waiting))
            assert changing.status.writes == 2


async def test_what_a_pod_holds_waits_and_is_replaced_when_it_is_released(tmp_path: Path, said: Said) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-223") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-223", 8))
        held = uuid(FIRST, "nvidia-223", 3)
        changing.hold(held)
        changing.want("nvidia-228")
        await changing.until_counts((FIRST, "nvidia-223", 1))
        await changing.until_at_rest()
        assert list(changing.cards.instances) == [held]
        (waiting,) = changing.plan.waiting
        names(waiting.why, "ns/vm")
        (line,) = (line for line in said(log.ACTION_WAITING) if held in str(line["action"]))
        assert (line["device"], line["pod"], line["type"]) == ((held,), ("ns/vm",), "nvidia-223")
        changing.hold()
        await changing.until_counts((FIRST, "nvidia-228", 2))


async def test_what_a_process_has_open_waits_and_is_noticed_when_closed(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-223") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-223", 8))
        opened = uuid(FIRST, "nvidia-223", 0)
        changing.cards.hold(opened)
        changing.want("nvidia-228")
        await changing.until_counts((FIRST, "nvidia-223", 1))
        assert list(changing.cards.instances) == [opened]
        await changing.until(lambda: bool(changing.plan.waiting))
        changing.cards.release(opened)
        await changing.until_counts((FIRST, "nvidia-228", 2))


async def test_a_function_is_bound_that_was_open_only_while_its_driver_was_restored(tmp_path: Path) -> None:
    """A probe of a function on a driver of the host cannot exclude its use, and no step takes it again."""
    async with node(tmp_path, []) as changing:
        changing.eyes.host.add_function(
            NIC, vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=7
        )
        await changing.eyes.observer.scan()
        changing.publish(open=frozenset((NIC,)))
        changing.publish(spec=Spec(passthrough=(PassthroughRule((PciSelector(addresses=(NIC,)),)),)))
        async with changing.run():
            await changing.until(lambda: changing.status.writes == 1)


async def test_nothing_is_removed_while_nobody_knows_who_holds_what(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-228", 2))
        changing.publish(allocations=Allocations.of({}, Knowledge.UNKNOWN))
        changing.want("nvidia-223")
        await changing.until(lambda: len(changing.plan.waiting) == 2)
        await changing.until_at_rest()
        assert changing.counts() == [(FIRST, "nvidia-228", 2)]
        changing.hold()
        await changing.until_counts((FIRST, "nvidia-223", 8))


async def test_after_a_crash_between_any_two_writes_the_end_is_the_same(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST, SECOND), "nvidia-223", "nvidia-228") as changing:
        for writes in (1, 3, 6, 9):
            changing.forget()
            async with changing.run():
                await changing.until(lambda writes=writes: changing.cards.writes >= writes)  # type: ignore[misc]
        changing.forget()
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-223", 8), (SECOND, "nvidia-228", 2))
            changing.want("nvidia-222")
            await changing.until(lambda: changing.cards.writes >= 14)
        changing.forget()
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-222", 16), (SECOND, "nvidia-222", 16))


async def test_a_parent_that_goes_and_comes_back_is_filled_again(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-228", 2))
        changing.cards.unload(FIRST)
        await changing.until(lambda: changing.plan.cards == () and not changing.runner.working)
        assert changing.counts() == []
        changing.cards.load(FIRST)
        await changing.until_counts((FIRST, "nvidia-228", 2))


async def test_a_card_that_comes_back_does_not_wait_for_what_it_was_refused_before(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing:
        fail_create(changing.cards.host, FIRST, "nvidia-228", errno.EIO)
        changing.forget(backoff=SLOW)
        async with changing.run():
            await changing.until(lambda: bool(changing.status.failing))
            changing.cards.unload(FIRST)
            await changing.until(lambda: not changing.status.failing)
            changing.cards.load(FIRST)
            await changing.until_counts((FIRST, "nvidia-228", 2))


async def test_a_write_that_hangs_is_told_and_delays_no_other_card(tmp_path: Path, said: Said) -> None:
    async with node(tmp_path, t4(FIRST, SECOND), "nvidia-228") as changing:
        path = create_file(changing, FIRST, "nvidia-228")
        path.unlink()
        os.mkfifo(path)
        changing.forget(deadline=0.1)
        async with changing.run():
            await changing.until_counts((SECOND, "nvidia-228", 2))
            await changing.until(lambda: len(changing.status.stuck) == 1)
            await changing.until(
                lambda: any("not answered" in str(line["cause"]) for line in said(log.ACTION_WAITING))
            )
            await changing.until(lambda: not changing.runner.working)
            assert changing.status.writes == 3
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            changing.cards.create(FIRST, "nvidia-228", uuid(FIRST, "nvidia-228", 0))
            path.unlink()
            path.touch()
            await changing.until_counts((FIRST, "nvidia-228", 2), (SECOND, "nvidia-228", 2))
            os.close(reader)
            await changing.until(lambda: not changing.status.stuck)


async def test_without_a_machine_id_nothing_is_made_and_that_is_said(tmp_path: Path, said: Said) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing:
        (tmp_path / "etc/machine-id").write_text("uninitialized\n")
        async with changing.run():
            await changing.until(lambda: bool(changing.plan.problems))
            assert changing.counts() == []
            (line,) = said(log.PLAN_PROBLEM)
            assert "/etc/machine-id" in str(line["text"])


async def test_vfs_that_share_the_room_of_a_card_cause_no_failure(tmp_path: Path, said: Said) -> None:
    card = Card(FIRST, (Type("nvidia-500", 2, "NVIDIA A2-8Q"),), vfs=vf_addresses(FIRST, 6))
    async with node(tmp_path, [card], "nvidia-500") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-500", 2))
        await changing.until_at_rest()
        assert said(log.ACTION_FAILED) == []
        assert changing.cards.writes == 2


async def test_vgpu_types_are_set_remembered_and_changed_after_a_restart(tmp_path: Path) -> None:
    vfs = vf_addresses(FIRST, 4)
    async with node(tmp_path, [Card(FIRST, VGPUS, vfs=vfs, vgpu=True)], "NVIDIA A40-12Q") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "1", 4))
            await changing.until_at_rest()
        saved = ledger.SECTION.load(changing.root.prefix)
        names = {"1": "NVIDIA A40-12Q", "2": "NVIDIA A40-24Q"}
        assert saved == Ledger(dict.fromkeys(vfs, "1"), names, dict.fromkeys(vfs, ("1", "2")))
        changing.forget()
        changing.want("NVIDIA A40-24Q")
        changing.cards.hold(vfs[1])
        async with changing.run():
            await changing.until_counts((FIRST, "1", 1))
            changing.cards.release(vfs[1])
            await changing.until_counts((FIRST, "2", 2))


async def test_vfs_are_made_and_then_filled(tmp_path: Path) -> None:
    vfs = vf_addresses(FIRST, 4)
    card = Card(FIRST, VGPUS, vfs=vfs, vgpu=True)
    rule = SriovRule((PciSelector(addresses=(FIRST,)),), 4)
    async with node(tmp_path, [Card(FIRST, ())], "1") as changing, changing.run():
        changing.cards.kernel.cards[:] = [card]
        changing.cards.host.write(FIRST, "sriov_numvfs", "0")
        changing.cards.host.write(FIRST, "sriov_totalvfs", "4")
        add_sriov_manage(changing.cards.host)
        changing.eyes.scan_requests.add(FIRST)
        SimulatedVfs(
            changing.cards.host,
            FIRST,
            changing.eyes.watcher,
            group=50,
            driver="nvidia",
            on_change=lambda: changing.cards.load(FIRST),
        )
        changing.want("1", sriov=(rule,))
        await changing.until_counts((FIRST, "1", 4))
        await changing.until_at_rest()
        assert changing.plan.waiting == ()
