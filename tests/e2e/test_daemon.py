# SPDX-License-Identifier: Apache-2.0
"""The daemon itself is restarted, killed and upgraded below a running pod."""

from __future__ import annotations

import signal
from pathlib import Path

from nodeagent.sim.host import SimulatedHost
from tests.e2e import pods as pods_of
from tests.e2e import waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, GPU, GPU_ENV, SECOND, THIRD, only, rule


def test_a_daemon_that_is_killed_comes_back_and_its_pods_never_notice(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    held = pods.run("stays", {GPU: 1}).env[GPU_ENV]
    before = pods.started_at("stays")
    daemon.stop(signal.SIGKILL)
    running.await_counts(GPU, 4, 0)
    daemon.start()
    running.await_counts(GPU, 4, 4)
    assert pods.started_at("stays") == before
    assert held in daemon.status()["holders"]
    others = pods.run("others", {GPU: 3}).env[GPU_ENV].split(",")
    assert held not in others


def test_a_daemon_that_is_stopped_leaves_in_peace(running: Cluster, daemon: Daemon, pods: Pods) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    pods.run("stays", {GPU: 1})
    assert daemon.stop() == 0
    assert not list((running.kubelet.directory / "device-plugins").glob("nodeagent-*.sock"))
    daemon.start()
    running.await_counts(GPU, 4, 4)


def test_a_container_that_crashes_while_the_daemon_is_away_gets_its_device_again(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    crashing = pods_of.container("main", {GPU: 1}, then="sleep 3; exit 1")
    pods.create(pods_of.manifest("crashing", crashing, restart="Always"))
    first = pods.given("crashing")
    daemon.stop()
    second = pods.given("crashing", start=1)
    assert second.env[GPU_ENV] == first.env[GPU_ENV]
    assert second.nodes == first.nodes


def test_an_upgraded_daemon_takes_over_what_pods_hold(
    running: Cluster, daemon: Daemon, pods: Pods, tmp_path: Path
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    held = pods.run("stays", {GPU: 1}).env[GPU_ENV]
    before = pods.started_at("stays")
    daemon.stop()
    daemon.upgrade(tmp_path, "99.0.0")
    daemon.start()
    running.await_counts(GPU, 4, 4)
    assert daemon.status()["version"] == "99.0.0"
    assert held in daemon.status()["holders"]
    assert pods.started_at("stays") == before


def test_a_held_device_that_goes_while_the_daemon_is_away_is_listed_unhealthy_when_it_is_back(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    name = "example.com/away"
    daemon.configure(only(rule(name, FIRST, SECOND, THIRD)))
    daemon.start()
    running.await_counts(name, 3, 3)
    pods.run("holder", {name: 3})
    daemon.stop()
    host.unplug(FIRST)
    daemon.start()
    running.await_counts(name, 3, 2)
    assert daemon.device(FIRST)["healthy"] is False
    pods.delete("holder")
    running.await_counts(name, 2, 2)


def test_a_second_daemon_refuses_to_serve_the_same_node(running: Cluster, daemon: Daemon) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    second = Daemon(running.host, running.base / "second.log")
    try:
        second.launch()
        waiting.until(lambda: not second.running, "the second daemon gives up")
        assert second.stop() == 1
    finally:
        second.stop()
    running.await_counts(GPU, 4, 4)
    assert not daemon.events("registration-lost")
