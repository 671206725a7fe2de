# SPDX-License-Identifier: Apache-2.0
"""What one reader tells after many answers is what a new one tells of the last of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import anyio.lowlevel
import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.podresources import PodReader, VirtHandler
from nodeagent.model.allocation import PodList
from tests.kubelet.test_podresources import NOBODY, Raw, pod_with, serving
from tests.sim.plugin import RESOURCE

RESOURCES = ("a.io/x", "kubevirt.io/gpu", "b.io/y")
IDS = ("d1", "d2", "d3", "7", "8")
LONG = 16000  # devices: more than one slice, whatever is done with them


def answer(*pods: v1.PodResources) -> bytes:
    return bytes(v1.ListPodResourcesResponse(list(pods)))


def any_pod(chance: random.Random, name: str) -> v1.PodResources:
    devices = [
        v1.ContainerDevices(chance.choice(RESOURCES), chance.choices(IDS, k=2), v1.TopologyInfo([numa]))
        for numa in (v1.NumaNode(0), v1.NumaNode(1))[: chance.randrange(3)]
    ]
    return v1.PodResources(name, "ns", [v1.ContainerResources("c", devices)])


def changed(chance: random.Random, pods: Sequence[v1.PodResources]) -> list[v1.PodResources]:
    """A pod comes, goes, has something else, is said twice, or is there twice; or it is another order."""
    number = chance.randrange(len(pods) + 1)
    before, there, after = pods[:number], pods[number : number + 1], pods[number + 1 :]
    name = there[0].name if there else chance.choice("pqrstuv")
    return chance.choice(
        [
            [*before, *after],
            [*before, any_pod(chance, name), *after],
            [*before, *there, any_pod(chance, name), *after],
            [*pods, any_pod(chance, chance.choice("pqrstuv"))],
            [*pods, *there],
            chance.sample(pods, len(pods)),
        ]
    )


def long_pod(name: str) -> v1.PodResources:
    """A pod of which each step takes so long that others have their turn in between."""
    devices = v1.ContainerDevices(RESOURCE, [f"{name}{number}" for number in range(LONG)])
    return v1.PodResources(name, "ns", [v1.ContainerResources("c", [devices])])


async def turned(turns: int) -> None:
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()


async def by_a_new_one(path: str, virt_handler: VirtHandler = NOBODY) -> PodList:
    return await PodReader(path, virt_handler, Timeouts().pod_resources_rpc).pods()


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_comes_and_goes_a_reader_tells_what_a_new_one_does(tmp_path: Path, seed: int) -> None:
    chance, service, pods = random.Random(seed), Raw(b""), list[v1.PodResources]()
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    async with serving(tmp_path, service) as path:
        virt_handler = VirtHandler(str(plugins))
        with closing(PodReader(path, virt_handler, Timeouts().pod_resources_rpc, idle=5.0)) as reader:
            for step in range(40):
                pods = changed(chance, pods)
                service.answer = answer(*pods)
                if step % 13 == 12:  # from now on numbers of this resource are groups
                    socket = f"kubevirt-{chance.choice(RESOURCES).replace('/', '-')}.sock"
                    (plugins / socket).touch()
                told = await reader.pods()
                assert told == await by_a_new_one(path, virt_handler), (seed, step)


async def test_of_two_pods_with_one_name_both_show_what_they_have_in_any_order(tmp_path: Path) -> None:
    """One that ends, and the next one."""
    pods, service = [pod_with("p", "a"), pod_with("p")], Raw(b"")
    async with serving(tmp_path, service) as path:
        reader = PodReader(path, NOBODY, Timeouts().pod_resources_rpc)
        for order in (pods, pods[::-1]):
            service.answer = answer(*order)
            assert (await reader.pods()).pods == {"ns/p": {(RESOURCE, "a")}}


async def test_a_question_that_is_given_up_at_any_moment_leaves_nothing_half_read(tmp_path: Path) -> None:
    """An Allocate waits for the kubelet for some time only."""
    before, after, service = answer(pod_with("one", "a")), answer(long_pod("two")), Raw(b"")
    turns, answers = 4, list[PodList]()

    async def ask() -> None:
        answers.append(await reader.pods())

    async with serving(tmp_path, service) as path:
        reader = PodReader(path, NOBODY, Timeouts().pod_resources_rpc)
        while not answers:
            service.answer = before
            await reader.pods()
            service.answer = after
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await turned(turns)
                tasks.cancel_scope.cancel()
            assert (await reader.pods()).pods.keys() == {"ns/two"}, f"given up after {turns} turns"
            turns += 1


async def test_questions_that_overlap_leave_no_mixture(tmp_path: Path) -> None:
    """Allocates ask by themselves, whoever else is asking."""
    answers, service = {"ns/one": answer(long_pod("one")), "ns/two": answer(pod_with("two", "b"))}, Raw(b"")
    async with serving(tmp_path, service) as path:
        reader = PodReader(path, NOBODY, Timeouts().pod_resources_rpc)
        for turns in range(4, 30):
            async with anyio.create_task_group() as tasks:
                for service.answer in answers.values():
                    tasks.start_soon(reader.pods)
                    await turned(turns)
            for name in ("ns/two", "ns/one", "ns/two"):
                service.answer = answers[name]
                assert (await reader.pods()).pods.keys() == {name}, f"{turns} turns between them"
