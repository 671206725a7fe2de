# SPDX-License-Identifier: Apache-2.0
"""Chaos: whatever happens in whatever order, no board ever has two owners, and at rest all is usable again.

The seed is printed; NODEAGENT_E2E_SEED repeats it. Only the choices are repeated: the moments are the
machine's. The line at the end says what was done and what pods were told.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import boards, chaos, podresources, waiting, watching
from tests.e2e import pods as pods_of
from tests.e2e.chaos import Trouble
from tests.e2e.cluster import Cluster
from tests.e2e.crowds import Crowd, Kind
from tests.e2e.daemon import Daemon
from tests.e2e.pods import STAY, Limits, Pods
from tests.e2e.resources import GROUPS, only, rule
from tests.e2e.watching import Devices, Watch

pytestmark = pytest.mark.long

SECONDS = 90.0
REST = 60.0  # seconds until all is usable again; a kubelet may be doubted for 30 s
GPU, SOUND, PAIR = "example.com/gpu", "example.com/sound", "example.com/pair"


@dataclass(frozen=True)
class Layout:
    """Which functions of a board make which resource, and how they are isolated."""

    functions: Mapping[str, tuple[int, ...]]
    isolation: str

    def rules(self) -> list[dict[str, object]]:
        """For the configuration."""
        return [
            {**rule(name, *(f"{boards.board(gpu)}.{number}" for gpu in GROUPS for number in numbers))}
            | {"isolation": self.isolation}
            for name, numbers in self.functions.items()
        ]

    def counts(self) -> Counter[str]:
        """Resource → number of its devices: of a bundle there is one on each board."""
        bundle = self.isolation == "bundle"
        return Counter({name: 4 if bundle else 4 * len(each) for name, each in self.functions.items()})

    def kinds(self) -> dict[str, Kind]:
        """The kinds of pods that can be admitted."""
        made = {
            "gpu": single({GPU: 1}),
            "whole": single({GPU: 1, SOUND: 1}),
            "two": two,
            "init": init,
            "sidecar": sidecar,
        }
        return made | ({"part": single({PAIR: 1})} if PAIR in self.functions else {})


LAYOUTS = [
    Layout({GPU: (0,), SOUND: (1,), PAIR: (2, 3)}, "group"),
    Layout({GPU: (0, 1), SOUND: (2, 3)}, "bundle"),
]


def single(limits: Limits) -> Kind:
    """One container."""
    return lambda name, last: pods_of.manifest(name, pods_of.container("main", limits, then=last))


def two(name: str, last: str) -> object:
    """A container with the GPU, another with the sound function."""
    wanted = {"main": {GPU: 1}, "other": {SOUND: 1}}
    return pods_of.manifest(name, *(pods_of.container(*each, then=last) for each in wanted.items()))


def init(name: str, last: str) -> object:
    """An init container with the sound function, which ends; then one with the GPU."""
    first = pods_of.container("other", {SOUND: 1}, then="sleep 0.5")
    return pods_of.manifest(name, pods_of.container("main", {GPU: 1}, then=last), init=(first,))


def sidecar(name: str, last: str) -> object:
    """A sidecar with the sound function; then a container with the GPU."""
    first = {**pods_of.container("other", {SOUND: 1}, then=last), "restartPolicy": "Always"}
    return pods_of.manifest(name, pods_of.container("main", {GPU: 1}, then=last), init=(first,))


@pytest.fixture
def seed() -> int:
    """Of all choices."""
    return int(os.environ.get("NODEAGENT_E2E_SEED") or time.time_ns() % 1_000_000)


@pytest.fixture
def watch(running: Cluster, host: SimulatedHost, devices: Devices) -> Iterator[Watch]:
    """The watcher, as long as the test lasts."""
    with watching.watching(running.kubelet.directory, devices) as found:
        yield found


@pytest.fixture
def devices(host: SimulatedHost) -> Devices:
    """All functions of the four boards."""
    return Devices(host, (f"{boards.board(gpu)}.{number}" for gpu in GROUPS for number in range(4)))


def usable(running: Cluster, daemon: Daemon, counts: Counter[str]) -> bool:
    """True if the kubelet can give all devices away, and the daemon refuses none."""
    listed = (each for resource in daemon.status()["resources"] for each in resource["devices"])
    healthy = all(device["healthy"] for device in listed)
    return healthy and podresources.allocatable(running.kubelet.directory) & counts == counts


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.isolation)
def test_no_board_ever_has_two_owners_and_at_rest_all_is_usable(
    running: Cluster,
    daemon: Daemon,
    devices: Devices,
    watch: Watch,
    pods: Pods,
    layout: Layout,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with capsys.disabled():
        print(f"\nchaos: NODEAGENT_E2E_SEED={seed}, isolation {layout.isolation}", flush=True)
    daemon.configure(only(*layout.rules()))
    daemon.start()
    for name, count in layout.counts().items():
        running.await_counts(name, count, count)
    random = Random(seed)
    crowd = Crowd(running.api, watch, layout.kinds(), random)
    trouble = Trouble(running, daemon, devices, watch, random)
    try:
        chaos.run(crowd, trouble, random, SECONDS)
    finally:
        trouble.keep_up()
        waiting.until(crowd.leave, "all pods have gone", REST)
        with capsys.disabled():
            print(summary(crowd, trouble, watch), flush=True)
    try:
        seconds = all_is_usable(running, daemon, pods, layout)
        with capsys.disabled():
            print("all usable after", *(f"{each:.1f}" for each in seconds), "s", flush=True)
    finally:
        if watch.shared:
            print(daemon.log.read_text())
        assert not watch.shared, "\n".join(f"{each}: {told}" for each, told in watch.shared.items())
    assert not [each for each in trouble.done if "crashed" in each]


def all_is_usable(running: Cluster, daemon: Daemon, pods: Pods, layout: Layout) -> list[float]:
    """At rest nothing is refused: no device, and no pod of any kind. The seconds until rest, each time."""
    counts = layout.counts()

    def rest(what: str) -> float:
        began = time.monotonic()
        waiting.until(lambda: usable(running, daemon, counts), f"all devices are usable after {what}", REST)
        return time.monotonic() - began

    seconds = [rest("all pods")]
    for kind, make in layout.kinds().items():
        pods.create(pods_of.bound(make(f"last-{kind}", STAY)))
        pods.given(f"last-{kind}")
        pods.delete(f"last-{kind}")
        seconds.append(rest(kind))
    return seconds


def summary(crowd: Crowd, trouble: Trouble, watch: Watch) -> str:
    """All that happened, in one line."""
    tally = crowd.tally
    parts = {
        "made": tally.made,
        "admitted": tally.admitted,
        "refused": tally.refused,
        "ended": tally.ended,
        "trouble": trouble.done,
    }
    words = (f"{sum(each.values())} {name} {dict(each.most_common())}" for name, each in parts.items())
    seen = f"{watch.looks} looks ({watch.blind} without the kubelet), {len(watch.shared)} shared boards"
    return "; ".join((*words, seen))
