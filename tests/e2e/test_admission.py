# SPDX-License-Identifier: Apache-2.0
"""Admission and IOMMU groups: a pod gets all it asks of one board, and nobody else gets a part of that board.

A board has a GPU, a sound and a USB function in one group. Pods are made without the scheduler wherever the
moment counts: the kubelet then asks within milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import boards, foreign, node, podresources, waiting
from tests.e2e import pods as pods_of
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import LINGER, Limits, Pods
from tests.e2e.resources import FIRST, GROUPS, SECOND, THIRD, only, rule

GPU, SOUND, PAIR = "example.com/gpu", "example.com/sound", "example.com/pair"
LATE = "example.com/late"  # nobody has served it before
SLOW = 4.0  # seconds of another plugin's Allocate: longer than any settle time


def offer(running: Cluster, daemon: Daemon, *gpus: str) -> None:
    """Offer of each board its GPU and its sound function as two resources, and two more as one."""
    daemon.configure(
        only(
            rule(GPU, *gpus),
            rule(SOUND, *(function(gpu, 1) for gpu in gpus)),
            rule(PAIR, *(function(gpu, number) for gpu in gpus for number in (2, 3))),
        )
    )
    daemon.start()
    await_all(running, *gpus)


def await_all(running: Cluster, *gpus: str) -> None:
    """Wait until the Node shows all functions of these boards as allocatable."""
    for name, count in ((GPU, 1), (SOUND, 1), (PAIR, 2)):
        running.await_counts(name, count * len(gpus), count * len(gpus))


def function(gpu: str, number: int) -> str:
    """Another function of the board of that GPU."""
    return f"{boards.board(gpu)}.{number}"


def pod(name: str, limits: Limits, then: str | None = None) -> Any:
    """A pod with one container, bound to the node."""
    made = pods_of.container("main", limits) if then is None else pods_of.container("main", limits, then=then)
    return pods_of.bound(pods_of.manifest(name, made))


def given(pods: Pods, name: str, *containers: str) -> set[str]:
    """All addresses that these containers were given."""
    found = (pods.given(name, each).env.items() for each in containers or ("main",))
    values = (value for items in found for key, value in items if key.startswith("PCI_RESOURCE_"))
    return {address for value in values for address in value.split(",")}


def outcome(pods: Pods, name: str) -> str:
    """Running, or Failed, once it is one of the two."""

    def decided() -> str | None:
        phase: str = pods.get(name)["status"]["phase"]
        return phase if phase in ("Running", "Failed") else None

    return waiting.until(decided, f"{name} is admitted or refused", 30.0)


def test_one_container_gets_all_functions_of_the_only_board(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    offer(running, daemon, FIRST)
    pods.create(pod("whole", {GPU: 1, SOUND: 1, PAIR: 2}))
    assert given(pods, "whole") == {function(FIRST, number) for number in range(4)}


def test_pods_that_want_two_functions_get_them_from_one_board_and_each_its_own(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    offer(running, daemon, *GROUPS)
    for turn in range(2):
        names = [f"vm{turn}-{number}" for number in range(len(GROUPS))]
        for name in names:
            pods.create(pod(name, {GPU: 1, SOUND: 1}))
        taken = [boards.boards(given(pods, name)) for name in names]
        assert sorted(map(len, taken)) == [1] * len(names)
        assert len(set().union(*taken)) == len(names)
        pods.delete(*names)
        await_all(running, *GROUPS)


def two_containers(name: str) -> Any:
    """One container has the GPU, the other the sound function."""
    return pods_of.manifest(name, pods_of.container("main", {GPU: 1}), pods_of.container("other", {SOUND: 1}))


def init_first(name: str) -> Any:
    """An init container has the sound function, ends, and the app container has the GPU."""
    first = pods_of.container("other", {SOUND: 1}, then="")
    return pods_of.manifest(name, pods_of.container("main", {GPU: 1}), init=(first,))


def sidecar_first(name: str) -> Any:
    """A sidecar has the sound function, and the app container has the GPU."""
    first = {**pods_of.container("other", {SOUND: 1}), "restartPolicy": "Always"}
    return pods_of.manifest(name, pods_of.container("main", {GPU: 1}), init=(first,))


@pytest.mark.parametrize("kind", [two_containers, init_first, sidecar_first])
def test_two_containers_of_a_pod_share_the_only_board(
    running: Cluster, daemon: Daemon, pods: Pods, kind: Callable[[str], Any]
) -> None:
    offer(running, daemon, FIRST)
    pods.create(pods_of.bound(kind("both")))
    assert given(pods, "both", "main", "other") == {FIRST, function(FIRST, 1)}
    running.await_counts(PAIR, 2, 0)


@pytest.fixture
def static(running: Cluster) -> Iterator[Path]:
    """The manifest of a static pod, which is gone before the daemon is stopped."""
    path = running.kubelet.static / "pod.json"
    yield path
    path.unlink(missing_ok=True)
    directory = running.kubelet.directory
    waiting.until(lambda: not any(map(is_static, podresources.named(directory))), "the static pod has gone")


def is_static(name: str) -> bool:
    """True for the name of a static pod."""
    return name.endswith(f"-{node.NAME}")


def test_a_static_pod_gets_two_functions_of_the_only_board(
    running: Cluster, daemon: Daemon, static: Path
) -> None:
    offer(running, daemon, FIRST)
    made = pods_of.manifest("fixed", pods_of.container("main", {GPU: 1, SOUND: 1}))
    hidden = static.with_name(".pod.json")
    hidden.write_text(json.dumps(made))
    hidden.rename(static)
    waiting.until(
        lambda: boards.look(running.kubelet.directory).opened() == {FIRST, function(FIRST, 1)},
        "the static pod runs with both",
    )


@pytest.mark.parametrize("first", [GPU, SOUND])
def test_another_plugin_that_takes_its_time_in_between_parts_no_pod_from_its_board(
    running: Cluster, daemon: Daemon, pods: Pods, first: str
) -> None:
    offer(running, daemon, FIRST)
    with foreign.slow(running.kubelet.directory, SLOW) as slow:
        running.await_counts(foreign.SLOW, 1, 1)
        wanted = ({first: 1}, {foreign.SLOW: 1}, {GPU if first == SOUND else SOUND: 1})
        names = ("main", "foreign", "last")
        made = (pods_of.container(*each) for each in zip(names, wanted, strict=True))
        pods.create(pods_of.bound(pods_of.manifest("patient", *made)))
        waiting.until(lambda: slow.asked, "the other plugin is asked")
        pods.create(pod("hasty", {PAIR: 1}))  # waits for its turn, and must not get a part of the board
        assert outcome(pods, "hasty") == "Failed"
        assert given(pods, "patient", "main", "last") == {FIRST, function(FIRST, 1)}


def test_what_a_pod_got_that_was_refused_half_way_goes_to_the_next_pod_at_once(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    offer(running, daemon, FIRST)
    with foreign.refusing(running.kubelet.directory):
        running.await_counts(foreign.REFUSING, 1, 1)
        for turn in range(3):
            main = pods_of.container("main", {GPU: 1, SOUND: 1})
            refused = pods_of.manifest(
                f"refused{turn}", main, pods_of.container("none", {foreign.REFUSING: 1})
            )
            pods.create(pods_of.bound(refused))
            pods.create(pod(f"next{turn}", {SOUND: 1, PAIR: 2}))
            assert "not today" in pods.await_phase(f"refused{turn}", "Failed")["message"]
            assert given(pods, f"next{turn}") == {function(FIRST, number) for number in (1, 2, 3)}
            pods.delete(f"next{turn}")
            await_all(running, FIRST)


@pytest.mark.parametrize("wanted", [(PAIR, PAIR), (GPU, SOUND), (SOUND, PAIR)])
def test_two_pods_made_at_once_have_a_board_each(
    running: Cluster, daemon: Daemon, pods: Pods, wanted: tuple[str, str]
) -> None:
    offer(running, daemon, FIRST, SECOND)
    for turn in range(2):
        names = [f"one{turn}", f"two{turn}"]
        for name, resource in zip(names, wanted, strict=True):
            pods.create(pod(name, {resource: 1}))
        one, two = (boards.boards(given(pods, name)) for name in names)
        assert one != two
        pods.delete(*names)
        await_all(running, FIRST, SECOND)


@pytest.mark.parametrize(("resource", "after"), [(SOUND, 0.0), (SOUND, 0.3), (SOUND, 1.0), (PAIR, 0.0)])
def test_the_siblings_of_what_a_pod_got_a_moment_ago_are_refused_to_another_pod(
    running: Cluster, daemon: Daemon, pods: Pods, resource: str, after: float
) -> None:
    offer(running, daemon, THIRD)
    pods.create(pod("holder", {PAIR: 1}))
    waiting.pause(after)
    pods.create(pod("late", {resource: 1}))
    assert sorted(outcome(pods, name) for name in ("holder", "late")) == ["Failed", "Running"]
    assert not boards.look(running.kubelet.directory).shared()


@pytest.mark.parametrize("name", ["new", "old"])
def test_after_a_forced_deletion_the_next_pod_waits_for_the_end_of_the_old_container(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost, name: str
) -> None:
    uid = delete_by_force(running, daemon, pods, host)
    pods.create(pod(name, {GPU: 1}))
    await_end(running, uid)
    host.release(FIRST)
    assert outcome(pods, name) == "Running"
    assert given(pods, name) == {FIRST}


def test_after_a_forced_deletion_the_sibling_is_allocatable_when_the_device_is_closed(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    uid = delete_by_force(running, daemon, pods, host)
    await_end(running, uid)
    running.await_counts(SOUND, 1, 0)
    host.release(FIRST)
    running.await_counts(SOUND, 1, 1)
    pods.create(pod("new", {SOUND: 1}))
    assert given(pods, "new") == {function(FIRST, 1)}


def delete_by_force(running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost) -> str:
    """The uid of a deleted pod whose container still runs and has the GPU of the board open."""
    offer(running, daemon, FIRST)
    pods.create(pod("old", {GPU: 1}, then=LINGER))
    assert given(pods, "old") == {FIRST}
    host.hold(FIRST)
    (uid,) = {life.uid for life in boards.look(running.kubelet.directory).lives}
    pods.force("old")
    return uid


def await_end(running: Cluster, uid: str) -> None:
    """Wait until the containers of the pod have ended; no two pods share a board meanwhile."""

    def ended() -> bool:
        seen = boards.look(running.kubelet.directory)
        assert not seen.shared(), seen
        return all(life.uid != uid for life in seen.lives)

    waiting.until(ended, "the old container has ended")


def test_a_container_that_starts_late_gets_nothing_of_the_board_that_another_pod_was_admitted_with(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    """It was admitted while nobody served its resource, and the kubelet asks at its next start."""
    main = pods_of.container("main", {LATE: 1}, then="sleep 12")
    pods.create(pods_of.bound(pods_of.manifest("waiting", main, restart="Always")))
    assert given(pods, "waiting") == set()
    rules = rule(GPU, FIRST), rule(LATE, function(FIRST, 1))
    daemon.configure(only(*rules))
    daemon.start()
    for name in (GPU, LATE):
        running.await_counts(name, 1, 1)
    pods.create(pod("vm", {GPU: 1}))
    assert given(pods, "vm") == {FIRST}
    waiting.until(lambda: refused(pods, "waiting"), "the container is refused", 30.0)
    assert not boards.look(running.kubelet.directory).shared()


def refused(pods: Pods, name: str) -> bool:
    """True once the container cannot be started: the kubelet knows its device as Unhealthy."""
    (status,) = pods.get(name)["status"]["containerStatuses"]
    assert status["restartCount"] == 0, status
    message = status["state"].get("waiting", {}).get("message", "")
    return f"cannot allocate unhealthy devices {LATE}" in message
