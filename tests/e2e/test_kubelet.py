# SPDX-License-Identifier: Apache-2.0
"""The kubelet is restarted and killed at bad moments: pods stay, devices come back."""

from __future__ import annotations

import signal
import time

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import podresources, waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, GPU, GPU_ENV, GROUPS, SECOND, only, rule

RESTARTS = 20
BACK = 2.0  # seconds from the kubelet's start


def back(running: Cluster, resource: str, count: int) -> float:
    """Seconds from the kubelet's start until it can give that many devices away."""

    def counted() -> bool:
        return podresources.allocatable(running.kubelet.directory)[resource] == count

    waiting.until(counted, f"the new kubelet has {count} of {resource}", 30.0)
    return time.monotonic() - running.kubelet.started


@pytest.mark.timeout(300)
def test_twenty_kubelet_restarts_leave_pods_alone_and_bring_capacity_back_in_two_seconds(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    pods.run("stays", {GPU: 2})
    before = pods.started_at("stays")
    took = []
    for number in range(RESTARTS):
        running.kubelet.stop(signal.SIGTERM if number % 2 else signal.SIGKILL)
        running.kubelet.start()
        took.append(back(running, GPU, 4))
        running.kubelet.await_ready()
    assert max(took) < BACK, took
    running.await_counts(GPU, 4, 4)
    assert pods.started_at("stays") == before
    assert pods.run("after", {GPU: 2}).env[GPU_ENV]


def test_sixteen_resources_are_back_two_seconds_after_the_start_of_a_new_kubelet(
    running: Cluster, daemon: Daemon
) -> None:
    functions = [f"{address[:-1]}{number}" for address in GROUPS for number in range(4)]
    daemon.configure(only(*(rule(f"example.com/r{n}", function) for n, function in enumerate(functions))))
    daemon.start()
    running.await_counts("example.com/r15", 1, 1)
    running.kubelet.stop(signal.SIGKILL)
    running.kubelet.start()
    wanted = {f"example.com/r{n}" for n in range(16)}
    waiting.until(
        lambda: wanted <= podresources.allocatable(running.kubelet.directory).keys(), "all are back", 30.0
    )
    assert time.monotonic() - running.kubelet.started < BACK
    running.kubelet.await_ready()
    daemon.await_registered()
    assert {each["registrations"] for each in daemon.status()["resources"]} == {2}


def test_a_kubelet_killed_in_the_middle_of_an_allocate_does_no_harm(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    name = "example.com/share"
    daemon.configure(only({"name": name, "node": {"path": "/dev/vfio/vfio", "count": 3}}))
    daemon.start()
    running.await_counts(name, 3, 3)
    log = running.kubelet.log.stat().st_size
    daemon.send(signal.SIGSTOP)
    pods.start("cut", {name: 1})
    waiting.until(lambda: running.kubelet.allocates(log), "the Allocate is on its way")
    running.kubelet.stop(signal.SIGKILL)
    daemon.send(signal.SIGCONT)
    running.kubelet.start()
    back(running, name, 3)
    running.kubelet.await_ready()
    assert daemon.running
    assert pods.run("next", {name: 1}).nodes == {"/dev/vfio/vfio"}


def test_a_kubelet_comes_up_although_a_held_device_has_gone(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    name = "example.com/held"
    daemon.configure(only(rule(name, FIRST, SECOND)))
    daemon.start()
    running.await_counts(name, 2, 2)
    pods.run("holder", {name: 2})
    waiting.until(lambda: FIRST in daemon.status()["holders"], "the daemon knows the holder")
    host.unplug(FIRST)
    running.await_counts(name, 2, 1)
    # Kubelet 1.36 crashes here if the id is missing and the other one has a NUMA node:
    # pkg/kubelet/cm/devicemanager/topology_hints.go.
    running.kubelet.stop(signal.SIGKILL)
    running.kubelet.start()
    running.kubelet.await_ready()
    daemon.await_registered()
    waiting.until(
        lambda: FIRST in podresources.holders(running.kubelet.directory), "the kubelet has its pod again"
    )
    running.await_counts(name, 2, 1)
    assert running.kubelet.running
    listed = daemon.device(FIRST)
    assert listed is not None
    assert listed["healthy"] is False
    pods.delete("holder")
    running.await_counts(name, 1, 1, seconds=15)
