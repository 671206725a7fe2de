# SPDX-License-Identifier: Apache-2.0
"""Who has what open, asked in bounded time: what is not told in time counts as in use."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import anyio
import pytest

from nodeagent.agent.changing import probe
from nodeagent.agent.snapshot import Snapshots
from nodeagent.kernel.root import Root
from nodeagent.model.snapshot import Snapshot
from tests import exhausted
from tests.sim import fifos

UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
OTHER = "53764d0e-85a0-42b4-af5c-2046b460b1dd"


@pytest.fixture
def snapshots() -> Snapshots:
    return Snapshots(Snapshot(open=frozenset({OTHER})))


@pytest.fixture
def asking(tmp_path: Path, snapshots: Snapshots) -> probe.Probe:
    """Of a host on which nothing is told: its file of modules hangs."""
    driver = tmp_path / "sys/bus/mdev/devices" / UUID / "driver"
    driver.mkdir(parents=True)
    (driver / "module").symlink_to("../../../../../module/mtty")
    (tmp_path / "proc").mkdir()
    os.mkfifo(tmp_path / "proc/modules")
    return probe.Probe(Root(tmp_path), snapshots, deadline=0.2, fresh=0.5)


def answer(root: Path) -> None:
    fifos.replace_fifo(str(root / "proc/modules"), b"mtty 20480 0 - Live 0x0\n")


async def test_what_the_kernel_does_not_tell_in_time_is_in_use(asking: probe.Probe, tmp_path: Path) -> None:
    with anyio.fail_after(2):
        assert await asking.ask([UUID]) == {UUID}
    answer(tmp_path)
    assert await asking.ask([UUID]) == frozenset()


async def test_while_one_question_is_not_answered_no_other_is_asked(
    asking: probe.Probe, tmp_path: Path
) -> None:
    for _ in range(3):
        assert await asking.ask([UUID]) == {UUID}
    assert [each.name for each in threading.enumerate()].count("nodeagent: find_in_use") == 1
    answer(tmp_path)
    assert await asking.ask([UUID]) == frozenset()


async def test_what_is_open_is_published_until_a_new_question_says_otherwise(
    asking: probe.Probe, snapshots: Snapshots, tmp_path: Path
) -> None:
    await asking.ask([UUID])
    assert snapshots.now.open == {UUID, OTHER}, "of the other one nothing new is known"
    answer(tmp_path)
    await asking.refresh([UUID, OTHER, "not open"])
    assert snapshots.now.open == frozenset()


async def test_what_nobody_could_look_at_counts_as_open(tmp_path: Path, snapshots: Snapshots) -> None:
    (tmp_path / "sys/bus/mdev/devices" / UUID).mkdir(parents=True)
    asking = probe.Probe(Root(tmp_path), snapshots, deadline=5.0, fresh=0.5)
    with exhausted.no_descriptors():
        assert await asking.ask([UUID]) == frozenset({UUID})
    assert await asking.ask([UUID]) == frozenset()
