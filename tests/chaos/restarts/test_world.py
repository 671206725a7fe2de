# SPDX-License-Identifier: Apache-2.0
"""A run detects devices that the kubelet does not know, a device of two pods, and growth of memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import ContainerResult, ListedDevice, Pod
from tests.blackbox.harness import Usage
from tests.chaos.restarts.figures import GROWTH, Figures
from tests.chaos.restarts.world import Broken, World


@pytest.fixture
def world(tmp_path: Path, loop_may_block: None) -> World:
    """A node on which nothing runs, whose files are written on the loop."""
    return World(tmp_path, random.Random(1))


def told(world: World, root: Path) -> FakeKubelet:
    """A kubelet that was told just what it must be."""
    kubelet = FakeKubelet(root)
    kubelet.paths.plugins.mkdir(parents=True)
    for name, ids in world.expected().items():
        kubelet.state.table.update(name, [ListedDevice(each, "Healthy") for each in sorted(ids)])
        kubelet.statistics.streams[name] = 1
    return kubelet


async def test_a_kubelet_that_was_told_all_misses_nothing(world: World, tmp_path: Path) -> None:
    assert world.missing(told(world, tmp_path)) == []


async def test_a_resource_without_a_stream_is_missing(world: World, tmp_path: Path) -> None:
    kubelet = told(world, tmp_path)
    kubelet.statistics.streams["example.com/gpu-1"] = 0
    assert world.missing(kubelet) == ["example.com/gpu-1: 0 streams"]


async def test_a_change_that_the_kubelet_was_not_told_is_missing(world: World, tmp_path: Path) -> None:
    kubelet = told(world, tmp_path)
    world.change_hardware()
    assert len(world.missing(kubelet)) == 1
    world.all_well()
    assert world.missing(kubelet) == []


async def test_a_device_that_two_pods_have_is_seen(world: World, tmp_path: Path) -> None:
    kubelet = told(world, tmp_path)
    for name in ("a", "b"):
        world.given(_pod(name))
    with pytest.raises(Broken, match="was given to ns/a and to ns/b"):
        world.missing(kubelet)


def _pod(name: str) -> Pod:
    pod = Pod("ns", name, [])
    result = ContainerResult("c0")
    result.ids = {"example.com/gpu-0": ("0000:10:00.0",)}
    pod.results = {"c0": result}
    return pod


def test_what_grows_beyond_its_bound_is_told() -> None:
    def usage(rss: int, fds: int) -> Usage:
        return Usage(rss, fds, threads=4, ticks=0, switches=0, inotify=1)

    assert Figures(begin=usage(30_000, 30), end=usage(30_000 + GROWTH, 32)).faults() == []
    grown = Figures(begin=usage(30_000, 30), end=usage(30_001 + GROWTH, 33)).faults()
    assert [text.partition(":")[0] for text in grown] == ["memory", "descriptors"]
    assert Figures().faults() == ["no life of the daemon was measured"]
