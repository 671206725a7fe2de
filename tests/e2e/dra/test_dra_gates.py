# SPDX-License-Identifier: Apache-2.0
"""A cluster that drops counters and taints of ResourceSlices, as Kubernetes 1.35 does by default."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import building, cluster, waiting
from tests.e2e.cluster import Cluster
from tests.e2e.controlplane import GATES
from tests.e2e.daemon import Daemon
from tests.e2e.dra import reading
from tests.e2e.dra.objects import Objects, devices_of, from_template, pod, request
from tests.e2e.dra.settings import by_dra, launch
from tests.e2e.dra.slices import await_devices, name_of, watching
from tests.e2e.namespace import traces
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, SECOND, THIRD

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

GPU, AUDIO = "example.com/gpu", "example.com/audio"
DROPPED = ("DRADeviceTaints", "DRAPartitionableDevices")
AUDIO_OF_FIRST = FIRST.replace(".0", ".1")
BOARD = name_of(FIRST).replace("pci-", "board-")


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """A cluster of its own without these feature gates."""
    programs = building.kubernetes(building.chosen(os.environ))
    gates = {**GATES, **dict.fromkeys(DROPPED, False)}
    with cluster.running(programs, building.launcher(), building.containerd(), gates) as found:
        yield found
    assert traces(found.base) == []


def start(running: Cluster, driver: Daemon, *others: str) -> None:
    """Publish the GPU and the audio function of one group, and other GPUs."""
    names = [BOARD, *map(name_of, others)]
    launch(running, driver, names, by_dra(GPU, FIRST, *others), by_dra(AUDIO, AUDIO_OF_FIRST))


def test_of_a_group_the_board_alone_is_published_and_the_missing_gates_are_reported(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    with watching(running.api) as watch:
        start(running, driver)
        waiting.until(lambda: bool(watch.since(0)), "the watch has seen it")
        published = [each["name"] for event in watch.since(0) for each in event.slice["spec"]["devices"]]
    assert set(published) == {BOARD}
    assert sorted(each["object"] for each in driver.events("dra-gate-missing")) == sorted(DROPPED)
    objects.template("board", request("board", objects.device_class("board", GPU)))
    pods.create(pod("vm", "/bin/launcher claims vm/board vm/board-1", vm=from_template("board")))
    assert reading.host_devices(pods.given("vm")) == [FIRST, AUDIO_OF_FIRST]


def test_an_unusable_device_is_published_only_while_a_claim_has_it(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects, host: SimulatedHost
) -> None:
    start(running, driver, SECOND, THIRD)
    objects.template("gpu", request("gpu", objects.device_class("gpu", GPU)))
    pods.create(pod("holder", gpu=from_template("gpu")))
    pods.given("holder")
    (held,) = devices_of(running.api, "holder")
    for address in (FIRST, SECOND, THIRD):
        host.bind(address, "nvidia")
    await_devices(running.api, [held])
    pods.delete("holder")
    await_devices(running.api, [])
    for address in (FIRST, SECOND, THIRD):
        host.bind(address, "vfio-pci")
    await_devices(running.api, [BOARD, name_of(SECOND), name_of(THIRD)])
