# SPDX-License-Identifier: Apache-2.0
"""Usage: PodResources, the checkpoint and pending allocations as one table, also where they disagree."""

from __future__ import annotations

import anyio
import pytest

from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint, Entry
from nodeagent.model.allocation import Knowledge
from nodeagent.model.claim import Claim, ClaimDevice, ClaimRef
from tests.agent.kubelets import A, B, Kubelet, Node

BRIEF = Timeouts()._replace(
    checkpoint_write=0.02,
    checkpoint_write_before_change=0.02,
    checkpoint_rewrite=0.02,
    unreadable_checkpoint=0.05,
    pod_resources_in_allocate=0.05,
    pod_resources_repeat=0.01,
    pod_resources_spacing=0.001,
    pod_resources_after_allocate=0.02,
)


async def test_what_podresources_lists_and_what_the_checkpoint_has_is_in_use() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    kubelet.add("ns/init", (B, "1"), listed=False)
    node = Node(kubelet)
    await node.usage.request()
    assert node.in_use == {(A, "0"), (B, "1")}
    assert str(node.allocations.holder_of(A, "0")) == "ns/one"
    unlisted = node.allocations.holder_of(B, "1")
    assert unlisted is not None
    assert not unlisted.named
    assert node.allocations.complete


async def test_ids_of_different_resources_are_different_devices() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    kubelet.add("ns/two", (B, "0"))
    node = Node(kubelet)
    await node.usage.request()
    assert [str(node.allocations.holder_of(name, "0")) for name in (A, B)] == ["ns/one", "ns/two"]


async def test_an_entry_of_a_pod_that_has_ended_is_dropped_after_one_list_is_sent_again() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    node = Node(kubelet)
    await node.usage.request()
    kubelet.end("ns/one")
    await node.usage.request()
    assert node.in_use == set()
    assert kubelet.lists == 1
    assert node.rescans.asked == [{"0"}], "it is read again before its release is published"


async def test_no_list_is_sent_again_for_entries_that_are_no_news() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/init", (A, "0"), listed=False)
    node = Node(kubelet)
    for _ in range(5):
        await node.usage.request()
    assert kubelet.lists == 1
    assert node.in_use == {(A, "0")}
    kubelet.add("ns/more", (A, "1"), listed=False)
    await node.usage.request()
    assert kubelet.lists == 2
    kubelet.end("ns/more")
    await node.usage.request()
    assert kubelet.lists == 3
    assert node.in_use == {(A, "0")}


async def test_the_name_of_a_pod_is_that_of_its_other_devices() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    kubelet.add("ns/one", (B, "1"), listed=False)
    node = Node(kubelet)
    await node.usage.request()
    assert str(node.allocations.holder_of(B, "1")) == "ns/one"


async def test_a_young_kubelet_frees_nothing_that_its_checkpoint_has() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    node = Node(kubelet)
    await node.usage.request()
    kubelet.listed.clear()
    node.usage.kubelet_changed()
    await node.usage.request()
    assert node.in_use == {(A, "0")}
    assert str(node.allocations.holder_of(A, "0")) == "ns/one", "its uid is known"


async def test_a_kubelet_that_reads_no_list_of_ours_is_taken_by_its_checkpoint_as_it_is() -> None:
    kubelet = Kubelet(reads_lists=False)
    kubelet.add("ns/one", (A, "0"))
    kubelet.end("ns/one")
    node = Node(kubelet, BRIEF)
    await node.usage.request()
    assert node.in_use == {(A, "0")}
    kubelet.reads_lists = True
    await anyio.sleep(2 * BRIEF.checkpoint_rewrite)
    await node.usage.request()
    assert node.in_use == set()


async def test_where_no_list_can_be_sent_a_pod_that_is_named_no_more_has_ended() -> None:
    kubelet = Kubelet(reads_lists=False)
    kubelet.add("ns/one", (A, "0"))
    node = Node(kubelet, BRIEF)
    await node.usage.request()
    del kubelet.listed["ns/one"]
    for _ in range(3):
        await node.usage.request()
        assert node.in_use == set()


async def test_where_no_list_can_be_sent_a_new_kubelet_that_names_no_pod_frees_nothing() -> None:
    kubelet = Kubelet(reads_lists=False)
    kubelet.add("ns/one", (A, "0"))
    node = Node(kubelet, BRIEF)
    await node.usage.request()
    node.usage.kubelet_changed()
    kubelet.listed.clear()
    await node.usage.request()
    assert node.in_use == {(A, "0")}


async def test_an_old_entry_ends_soon_although_neither_entries_nor_names_change() -> None:
    """A pod comes again under its name; the kubelet frees the devices of the former one later."""
    kubelet = Kubelet()
    kubelet.add("ns/old", (A, "0"), listed=False)
    node = Node(kubelet, BRIEF)
    await node.usage.request()
    kubelet.entries.clear()
    with anyio.fail_after(5):
        while node.in_use:
            await node.usage.request()


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(Checkpoint((9, 9, 9)), id="garbage, or another format"),
        pytest.param(Checkpoint(), id="not readable"),
        pytest.param(Checkpoint(missing=True), id="missing"),
    ],
)
async def test_without_a_readable_checkpoint_the_last_known_allocations_count_for_a_while(
    damaged: Checkpoint,
) -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    node = Node(kubelet, BRIEF)
    await node.usage.request()
    kubelet.listed.clear()
    kubelet.written = damaged
    kubelet.reads_lists = False
    await node.usage.request()
    assert node.in_use == {(A, "0")}
    assert node.allocations.knowledge is Knowledge.PARTIAL
    with anyio.fail_after(5):
        while node.in_use:
            await node.usage.request()
    assert node.allocations.complete


async def test_entries_of_a_checkpoint_that_is_understood_in_part_are_in_use() -> None:
    kubelet = Kubelet(reads_lists=False)
    kubelet.written = Checkpoint((9, 9, 9), (Entry("uid", A, "0", None),))
    node = Node(kubelet, BRIEF)
    await node.usage.request()
    assert node.in_use == {(A, "0")}
    assert not node.allocations.complete


async def test_a_kubelet_that_has_written_no_checkpoint_yet_has_allocated_nothing() -> None:
    node = Node(Kubelet(written=Checkpoint(missing=True), reads_lists=False))
    await node.usage.request()
    await node.usage.request_before_change()
    assert node.allocations.complete


async def test_silence_frees_nothing_and_the_checkpoint_still_adds() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    node = Node(kubelet, BRIEF)
    await node.usage.request()
    kubelet.silent = True
    kubelet.add("ns/two", (A, "1"))
    await node.usage.request()
    assert node.in_use == {(A, "0"), (A, "1")}
    assert node.allocations.knowledge is Knowledge.NO_ANSWER
    kubelet.present = False
    await node.usage.request()
    assert not node.allocations.answered
    assert node.usage.error is not None


async def test_before_a_change_the_checkpoint_is_written_in_any_case() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    node = Node(kubelet)
    await node.usage.request_before_change()
    await node.usage.request_before_change()
    assert kubelet.lists == 2
    assert node.allocations.written == frozenset({(A, "0")})


async def test_callers_that_wait_at_the_same_time_share_an_answer() -> None:
    kubelet = Kubelet()
    node = Node(kubelet)
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(node.usage.request_before_change)
    assert kubelet.requests.get() == 1


async def test_before_a_change_a_request_that_let_the_checkpoint_be_does_not_count() -> None:
    kubelet = Kubelet()
    node = Node(kubelet)
    async with anyio.create_task_group() as tasks:
        for each in (node.usage.request, node.usage.request, node.usage.request_before_change):
            tasks.start_soon(each)
    assert kubelet.lists == 1


async def test_a_silent_kubelet_is_asked_once_whoever_waits_for_a_change() -> None:
    kubelet = Kubelet()
    node = Node(kubelet, BRIEF)
    await node.usage.request()
    kubelet.silent, kubelet.silent_for = True, 2 * BRIEF.pod_resources_repeat
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(node.usage.request_before_change)
    assert kubelet.requests.get() == 2
    assert node.allocations.knowledge is Knowledge.NO_ANSWER


async def test_a_checkpoint_that_is_not_written_in_time_tells_nothing_of_answers() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    node = Node(kubelet, BRIEF)
    before = kubelet.written
    await node.usage.request()
    kubelet.write = lambda: None  # type: ignore[method-assign]
    await node.usage.request_before_change()
    assert kubelet.written == before
    assert node.allocations.written == frozenset()


async def test_what_was_released_a_moment_ago_is_known_for_a_while() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    node = Node(kubelet)
    await node.usage.request()
    kubelet.end("ns/one")
    await node.usage.request()
    now = anyio.current_time()
    assert node.usage.released.find_recent(now) == {"0"}
    assert node.usage.released.find_recent(now + Timeouts().forgotten_container_end) == set()


async def test_the_kubelet_is_asked_when_its_checkpoint_has_other_entries_and_not_when_it_is_written() -> (
    None
):
    kubelet = Kubelet()
    node = Node(kubelet, BRIEF)
    changes: Latest[int] = Latest(0)
    async with node.running(), anyio.create_task_group() as tasks:
        await kubelet.until_asked(1)
        tasks.start_soon(node.usage.follow_checkpoint, changes)
        await anyio.wait_all_tasks_blocked()
        kubelet.write()
        changes.touch()
        kubelet.add("ns/one", (A, "0"))
        changes.touch()
        await kubelet.until_asked(2)
        tasks.cancel_scope.cancel()
    assert kubelet.requests.get() == 2


async def test_the_kubelet_is_asked_again_for_a_pod_of_the_checkpoint_that_its_answer_lacks() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/init", (A, "0"), listed=False)
    node = Node(kubelet, BRIEF)
    async with node.running():
        await kubelet.until_asked(2)
        await anyio.wait_all_tasks_blocked()
    assert kubelet.requests.get() == 2


async def test_while_a_release_is_awaited_the_kubelet_is_asked_more_often() -> None:
    kubelet = Kubelet()
    node = Node(kubelet, BRIEF, holders=0.01)
    async with node.running():
        await kubelet.until_asked(1)
        node.releases.wait_for(frozenset({"0"}), by="test")
        await kubelet.until_asked(5)


async def test_the_first_list_waits_for_an_answer_but_not_long() -> None:
    kubelet = Kubelet(silent=True)
    node = Node(kubelet, BRIEF._replace(pod_resources_at_start=0.05, pod_resources_repeat=0.001))
    with anyio.fail_after(5):
        await node.usage.first()
        await node.usage.ready()
    kubelet.silent = False
    node.usage.kubelet_changed()
    async with node.running():
        with anyio.fail_after(5):
            await node.usage.ready()
    assert node.allocations.complete


async def test_the_devices_of_prepared_claims_are_in_use_until_they_are_unprepared() -> None:
    kubelet = Kubelet()
    kubelet.add("ns/one", (A, "0"))
    node = Node(kubelet)
    await node.usage.request()
    device = ClaimDevice("gpu", "pool", "name", B, "1", ("1", "2"))
    claims = {"uid": Claim(ClaimRef("ns", "gpu", "uid"), (device,))}
    node.usage.set_claims(claims)
    assert node.snapshots.now.claims == claims
    await node.usage.request()
    assert node.in_use == {(A, "0"), (B, "1")}
    assert [str(node.snapshots.now.holder(each)) for each in "012"] == [
        "ns/one",
        "claim ns/gpu",
        "claim ns/gpu",
    ]
    assert list(node.allocations.not_in_checkpoint()) == []
    kubelet.end("ns/one")
    await node.usage.request()
    assert node.in_use == {(B, "1")}
    node.usage.set_claims({})
    assert node.in_use == set()
    assert node.snapshots.now.holder("2") is None
