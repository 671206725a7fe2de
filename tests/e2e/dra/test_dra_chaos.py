# SPDX-License-Identifier: Apache-2.0
"""Chaos with one function of each board by the device plugin, and the others by DRA.

The claims are those of extended resources, so all pods and their witnesses are as in ``test_chaos``; but all
pods go through the scheduler, which makes the claims.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import boards, chaos, podresources, test_chaos, waiting, watching
from tests.e2e.chaos import Trouble
from tests.e2e.cluster import Cluster
from tests.e2e.crowds import Crowd
from tests.e2e.daemon import Daemon
from tests.e2e.dra import slices
from tests.e2e.dra.objects import Objects
from tests.e2e.dra.settings import by_dra, launch
from tests.e2e.dra.slices import name_of
from tests.e2e.pods import STAY, Pods
from tests.e2e.resources import GROUPS, rule
from tests.e2e.test_chaos import GPU, PAIR, SOUND, devices, seed, single
from tests.e2e.watching import Devices, Watch

__all__ = ("devices", "seed")  # fixtures

pytestmark = pytest.mark.long

SECONDS = 90.0
REST = 150.0  # seconds; a pod that starts while the daemon is away is tried again after 60 to 90 s
KINDS = {name: single({resource: 1}) for name, resource in (("gpu", GPU), ("sound", SOUND), ("pair", PAIR))}


def functions(*numbers: int) -> list[str]:
    """These functions of all boards."""
    return [f"{boards.board(gpu)}.{number}" for gpu in GROUPS for number in numbers]


@pytest.fixture
def watch(running: Cluster, host: SimulatedHost, devices: Devices) -> Iterator[Watch]:
    """The watcher, as long as the test lasts."""
    with watching.watching(running.kubelet.directory, devices) as found:
        yield found


def usable(running: Cluster) -> bool:
    """True if the kubelet can give all GPUs away, and the scheduler all other functions."""
    published = slices.devices(running.api)
    healthy = not any("taints" in device for device in published.values())
    return (
        healthy
        and published.keys() >= set(map(name_of, functions(1, 2, 3)))
        and podresources.allocatable(running.kubelet.directory)[GPU] == len(GROUPS)
    )


@pytest.mark.timeout(600)
def test_no_board_ever_has_two_owners_by_plugin_and_by_claim(
    running: Cluster,
    driver: Daemon,
    devices: Devices,
    watch: Watch,
    pods: Pods,
    objects: Objects,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with capsys.disabled():
        print(f"\nchaos: NODEAGENT_E2E_SEED={seed}, DRA", flush=True)
    for name, resource in (("sound", SOUND), ("pair", PAIR)):
        objects.device_class(name, resource, extended=True)
    published = [*map(name_of, functions(1, 2, 3))]
    published += [name_of(each).replace("pci-", "board-") for each in functions(1)]
    rules = (rule(GPU, *functions(0)), by_dra(SOUND, *functions(1)), by_dra(PAIR, *functions(2, 3)))
    launch(running, driver, published, *rules)
    running.await_counts(GPU, len(GROUPS), len(GROUPS))
    random = Random(seed)
    crowd = Crowd(running.api, watch, KINDS, random, scheduled=1.0)
    trouble = Trouble(running, driver, devices, watch, random)
    try:
        chaos.run(crowd, trouble, random, SECONDS)
    finally:
        trouble.keep_up()
        waiting.until(crowd.leave, "all pods have gone", REST)
        with capsys.disabled():
            print(test_chaos.summary(crowd, trouble, watch), flush=True)
    began = time.monotonic()
    waiting.until(lambda: usable(running), "all devices are usable", REST)
    with capsys.disabled():
        print(f"all usable after {time.monotonic() - began:.1f} s", flush=True)
    assert not watch.shared, "\n".join(f"{each}: {told}" for each, told in watch.shared.items())
    assert not [each for each in trouble.done if "crashed" in each]
    for kind, make in KINDS.items():
        pods.create(make(f"last-{kind}", STAY))
        pods.given(f"last-{kind}")
        pods.delete(f"last-{kind}")
        waiting.until(lambda: usable(running), f"all devices are usable after {kind}", REST)
