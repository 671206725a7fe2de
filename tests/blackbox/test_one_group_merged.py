# SPDX-License-Identifier: Apache-2.0
"""Where rules meet: a kubelet that is silent in between, and what nobody shows, or no directory tells."""

from __future__ import annotations

import random
import shutil
import time

import anyio
import pytest

from tests.blackbox.boards import (
    FOR_EVER,
    GPU,
    HARDLY,
    LONE,
    LONE_AT,
    USB,
    named,
    running,
    started,
    usb_boards,
    usb_lists,
)
from tests.blackbox.foreign import NIC, serving
from tests.blackbox.harness import PATIENCE, T4, Node, pod
from tests.blackbox.test_one_group_twice import admitted_and_forgotten
from tests.blackbox.test_one_group_unknown import SILENT

pytestmark = pytest.mark.slow

SILENCES = pytest.mark.parametrize(
    "fault", [("pod-resources-delay", 60.0), (SILENT, True)], ids=lambda each: each[0]
)


@pytest.mark.parametrize("flags", [FOR_EVER, HARDLY], ids=["60 s", "50 ms"])
@pytest.mark.parametrize("seed", [0, 1])
async def test_what_an_init_container_got_in_silence_stays_its_pod_s_when_the_next_question_is_answered(
    node: Node, seed: int, flags: tuple[str, ...]
) -> None:
    """The kubelet writes its file when it has asked for all that a container wants; order is by the seed."""
    boards = usb_boards(node, 1)
    async with (
        started(node, *flags, listed=usb_lists(boards), seed=seed) as (_, kubelet),
        anyio.create_task_group() as tasks,
    ):
        kubelet.faults.set(SILENT)
        vm = pod("vm", {}, init_containers=[{GPU: 1, LONE: 1}])
        tasks.start_soon(kubelet.admit, vm)
        await kubelet.until(lambda: len(kubelet.statistics.allocations) == 1, PATIENCE)
        kubelet.faults.clear(SILENT)
        await kubelet.until(lambda: vm.phase != "Pending", PATIENCE)
        running(vm)
        late = await kubelet.admit(pod("late", {USB: 1}))
        assert late.phase == "Failed"


def in_order(count: int) -> int:
    """A seed with which the kubelet asks for so many resources in their order."""
    names = list(range(count))
    return next(seed for seed in range(1000) if shuffled(names, seed) == names)


def shuffled(names: list[int], seed: int) -> list[int]:
    """In the order to which a kubelet of that seed brings them first."""
    result = list(names)
    random.Random(seed).shuffle(result)
    return result


async def test_what_an_init_container_got_in_silence_stays_its_pod_s_while_another_plugin_takes_its_time(
    node: Node,
) -> None:
    """No directories are seen, and the file has nothing of the container yet."""
    boards = usb_boards(node, 1)
    async with (
        started(node, *HARDLY, listed=usb_lists(boards), seed=in_order(3)) as (_, kubelet),
        serving(kubelet, "n0", takes=3.0),
        anyio.create_task_group() as tasks,
    ):
        shutil.rmtree(kubelet.paths.pods, ignore_errors=True)
        kubelet.faults.set(SILENT)
        vm = pod("vm", {}, init_containers=[{GPU: 1, LONE: 1, NIC: 1}])
        tasks.start_soon(kubelet.admit, vm)
        await kubelet.until(lambda: len(kubelet.statistics.allocations) == 1, PATIENCE)
        kubelet.faults.clear(SILENT)
        await kubelet.until(lambda: vm.phase != "Pending", PATIENCE)
        running(vm)
        assert (await kubelet.admit(pod("late", {USB: 1}))).phase == "Failed"


async def test_what_a_silent_kubelet_has_forgotten_while_it_was_given_is_not_given_to_the_next_pod(
    node: Node,
) -> None:
    boards = usb_boards(node, 1)
    async with started(node, *HARDLY, listed=usb_lists(boards)) as (_, kubelet):
        before = await kubelet.admit(pod("before", {LONE: 1}))
        await named(node, LONE_AT, before)
        old = await kubelet.admit(pod("old", {GPU: 1}))
        vm = pod("vm", {LONE: 1})
        await admitted_and_forgotten(node, kubelet, LONE_AT, vm, old, before)
        await named(node, LONE_AT, vm)
        kubelet.faults.set(SILENT)
        other = await kubelet.admit(pod("other", {LONE: 1}))
        assert other.phase == "Failed"


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "answers"])
async def test_without_directories_a_pod_gets_again_what_its_init_container_had(
    node: Node, *, silent: bool
) -> None:
    boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        running(await kubelet.admit(pod("web", {})))
        shutil.rmtree(kubelet.paths.pods)
        if silent:
            kubelet.faults.set(SILENT)
        running(await kubelet.admit(pod("vm", {LONE: 1}, init_containers=[{LONE: 1}])))


@SILENCES
async def test_a_pod_waits_a_second_for_a_lone_device_where_the_kubelet_is_known_to_be_silent(
    node: Node, fault: tuple[str, object]
) -> None:
    """Also right after another one: a second for the preference, and one for the Allocate."""
    for number in range(20, 23):
        node.add_gpu(f"0000:{number}:00.0", number)
    async with started(node, *FOR_EVER, listed={T4: 3}) as (_, kubelet):
        kubelet.faults.set(*fault)
        running(await kubelet.admit(pod("first", {T4: 1})))
        await node.until_told(lambda told: "devices in use are not known" in str(told["problems"]))
        began = time.monotonic()
        running(await kubelet.admit(pod("second", {T4: 1})))
        assert time.monotonic() - began < 3.0
