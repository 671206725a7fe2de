# SPDX-License-Identifier: Apache-2.0
"""One Snapshot, one bell: equal parts stay the same objects and wake nobody."""

from __future__ import annotations

from dataclasses import replace

import anyio

from nodeagent.agent.snapshot import Snapshots
from nodeagent.model.host import Host
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import NodeRule, Spec

RULE = NodeRule("example.com/kvm", "/dev/kvm", 1)


def test_a_part_that_says_the_same_is_the_same_object_as_before() -> None:
    snapshots = Snapshots(Snapshot(names={"10de": "NVIDIA"}))
    before = snapshots.now
    assert not snapshots.publish(replace(before, host=Host(), names={"10de": "NVIDIA"}))
    assert snapshots.now is before
    assert snapshots.publish(replace(before, names={"10de": "NVIDIA"}, machine_id="0"))
    assert snapshots.now.names is before.names
    assert snapshots.now.machine_id == "0"
    assert snapshots.version == 1


def test_parts_of_two_writers_do_not_meet() -> None:
    snapshots = Snapshots(Snapshot())
    snapshots.publish(replace(snapshots.now, machine_id="0"))
    snapshots.publish(replace(snapshots.now, open=frozenset({"x"})))
    assert (snapshots.now.machine_id, set(snapshots.now.open)) == ("0", {"x"})


async def test_whoever_waits_is_woken_by_any_part_and_by_the_bell_alone() -> None:
    snapshots = Snapshots(Snapshot())
    seen: list[str] = []

    async def read() -> None:
        version = snapshots.version
        while len(seen) < 2:
            version, snapshot = await snapshots.newer(version)
            seen.append(snapshot.machine_id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        snapshots.publish(replace(snapshots.now, machine_id="0"))
        await anyio.wait_all_tasks_blocked()
        snapshots.touch()
    assert seen == ["0", "0"]


async def test_a_spec_of_a_kind_is_waited_for_and_each_spec_is_checked_once() -> None:
    snapshots = Snapshots(Snapshot(machine_id="0"))
    checked: list[Spec] = []

    def has_rule(spec: Spec) -> bool:
        checked.append(spec)
        return bool(spec.rules)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(snapshots.until, has_rule)
        await anyio.wait_all_tasks_blocked()
        snapshots.publish(replace(snapshots.now, machine_id="1"))
        await anyio.wait_all_tasks_blocked()
        assert len(checked) == 1
        snapshots.publish(replace(snapshots.now, spec=Spec(labels=(("a", "b"),))))
        await anyio.wait_all_tasks_blocked()
        assert len(checked) == 2
        snapshots.publish(replace(snapshots.now, spec=Spec(rules=(RULE,))))
    await snapshots.until(has_rule)
    assert checked[2:] == [snapshots.now.spec, snapshots.now.spec]
