# SPDX-License-Identifier: Apache-2.0
"""A daemon that starts on a node where something exists: what it cannot read, and what it remembers."""

from __future__ import annotations

import errno
from pathlib import Path

import anyio
import pytest

from nodeagent.agent.changing import ledger
from nodeagent.kernel.scan import nvidia
from nodeagent.model.ids import PciAddress
from nodeagent.model.spec import MdevSpec, Spec, WantedType
from nodeagent.sim import files
from nodeagent.sim.mdev import Card, Type, create_file
from tests.agent.changing.changing import FIRST, SECOND, SLOW, Changing, node, restarted, t4
from tests.sim import fifos
from tests.sim.vfs import vf_addresses

pytestmark = pytest.mark.usefixtures("loop_may_block")  # the simulated kernel works in the same loop

VGPUS = (Type("1", 4, "NVIDIA A40-12Q"), Type("2", 2, "NVIDIA A40-24Q"))


async def test_a_card_that_is_slow_to_tell_its_types_at_the_start_keeps_its_instances(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-222") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-222", 16))
            await changing.until_at_rest()
        before = changing.cards.writes
        slow = create_file(changing.cards.host, FIRST, "nvidia-223").replace(
            "/create", "/available_instances"
        )
        fifos.replace_by_fifo(slow)
        async with restarted(changing):
            assert changing.now.host.mdev_parents == {}
            await changing.until(lambda: bool(changing.plan.cards))
            fifos.replace_fifo(slow, b"0\n")
            await changing.until(lambda: bool(changing.now.host.mdev_parents))
            await changing.until_at_rest()
        assert changing.cards.writes == before


async def test_vgpu_cards_end_as_dealt_whatever_is_held_and_restarted_in_between(tmp_path: Path) -> None:
    both = [Card(address, VGPUS, vfs=vf_addresses(address, 4), vgpu=True) for address in (FIRST, SECOND)]
    async with node(tmp_path, both, "1") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "1", 4), (SECOND, "1", 4))
            await changing.until_at_rest()
        changing.want("2")  # one type: the simulated kernel shows which a card can have after a write returns
        changing.cards.hold(both[0].vfs[1])
        async with restarted(changing):
            await changing.until_counts((FIRST, "1", 1), (SECOND, "2", 2))
        async with restarted(changing):
            changing.cards.release(both[0].vfs[1])
            await changing.until_counts((FIRST, "2", 2), (SECOND, "2", 2))


async def test_the_names_of_vgpu_types_outlive_a_restart_on_a_full_card(tmp_path: Path) -> None:
    card = Card(FIRST, VGPUS, vfs=vf_addresses(FIRST, 4), vgpu=True)
    async with node(tmp_path, [card], "1") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "1", 4))
            await changing.until_at_rest()
        async with restarted(changing):
            await changing.until_at_rest()
            assert changing.now.names["vgpu:1"] == "NVIDIA A40-12Q"


async def test_a_vgpu_type_that_somebody_else_has_set_is_adopted_by_its_name(tmp_path: Path) -> None:
    vfs = vf_addresses(FIRST, 4)
    async with node(tmp_path, [Card(FIRST, VGPUS, vfs=vfs, vgpu=True)]) as changing:
        for vf in vfs:
            changing.cards.kernel.set_vgpu_type(vf, "1")
        changing.cards.show()
        files.write(f"{tmp_path}{nvidia.FILE}", '<vgpuType id="1" name="NVIDIA A40-12Q"/>')
        types = (WantedType("NVIDIA A40-12Q"),)
        changing.publish(spec=Spec(mdevs=MdevSpec(manage=True, types=types, adopt=True)))
        async with restarted(changing):
            await changing.until(lambda: bool(changing.plan.cards))
            (card,) = changing.plan.cards
            assert (card.types, {each.own for each in card.instances}) == (("1",), {True})
            await changing.until_at_rest()
        assert changing.cards.writes == 0


async def set_by_hand(changing: Changing, vf: str, type_id: str) -> None:
    """An operator gives a VF a type, and the node is looked at."""
    changing.cards.kernel.set_vgpu_type(vf, type_id)
    changing.cards.show(vgpu=vf)
    await changing.eyes.observer.rescan(frozenset({vf}))


async def test_a_type_set_by_hand_after_ours_was_cleared_is_foreign_also_after_a_restart(
    tmp_path: Path,
) -> None:
    vfs = vf_addresses(FIRST, 4)
    async with node(tmp_path, [Card(FIRST, VGPUS, vfs=vfs, vgpu=True)], "1") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "1", 4))
            changing.want()
            await changing.until_counts()
            await changing.until_at_rest()
            await set_by_hand(changing, vfs[0], "1")
        async with restarted(changing):
            await changing.until(lambda: bool(changing.plan.cards))
            await changing.until_at_rest()
        assert changing.counts() == [(FIRST, "1", 1)]


async def test_vfs_that_are_gone_are_off_the_record_on_disk_too(tmp_path: Path) -> None:
    vfs = vf_addresses(FIRST, 4)
    async with node(tmp_path, [Card(FIRST, VGPUS, vfs=vfs, vgpu=True)], "1") as changing:
        prefix = changing.root.prefix
        async with changing.run():
            await changing.until_counts((FIRST, "1", 4))
            await changing.until_at_rest()
            changing.cards.host.unplug(vfs[3])
            await changing.until(lambda: ledger.SECTION.load(prefix).types.keys() == set(vfs[:3]))


async def test_a_daemon_whose_first_look_fails_knows_its_own_vgpus_afterwards(tmp_path: Path) -> None:
    vfs = vf_addresses(FIRST, 4)
    async with node(tmp_path, [Card(FIRST, VGPUS, vfs=vfs, vgpu=True)], "1") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "1", 4))
            await changing.until_at_rest()
        changing.want("2")
        release = f"{tmp_path}/proc/sys/kernel/osrelease"
        files.write(release, "")
        fifos.replace_by_fifo(release)
        async with restarted(changing):
            assert changing.now.host.functions == {}
            await changing.until(lambda: changing.eyes.snapshots.now.ledger.types != {})
            changing.eyes.snapshots.touch()
            await anyio.wait_all_tasks_blocked()
            assert changing.plan.problems == ()
            fifos.replace_fifo(release, b"6.12\n")
            await changing.until_counts((FIRST, "2", 2))


async def test_a_vgpu_type_that_others_cleared_and_set_again_stays_when_ours_go(tmp_path: Path) -> None:
    vfs = vf_addresses(FIRST, 4)
    async with node(tmp_path, [Card(FIRST, VGPUS, vfs=vfs, vgpu=True)], "1") as changing:
        changing.forget(backoff=SLOW)
        async with changing.run():
            await changing.until_counts((FIRST, "1", 4))
            await changing.until_at_rest()
            kernel = changing.cards.kernel
            kernel.set_vgpu_type(vfs[0], "0")
            kernel.errors[FIRST, "1"] = errno.EIO  # ours is not to be made again at once
            changing.cards.show()
            await changing.until(lambda: bool(changing.status.failing))
            kernel.errors.clear()
            kernel.set_vgpu_type(vfs[0], "1")
            changing.cards.show()
            await changing.until(lambda: changing.now.host.functions[PciAddress(vfs[0])].vgpu_type == "1")
            changing.want()
            await changing.until_counts((FIRST, "1", 1))
            await changing.until_at_rest()
            assert list(changing.cards.instances) == [vfs[0]]
            assert ledger.SECTION.load(changing.root.prefix).types == {}
