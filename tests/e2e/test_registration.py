# SPDX-License-Identifier: Apache-2.0
"""Both ways to register with a real kubelet: Register on kubelet.sock, and plugins_registry."""

from __future__ import annotations

import signal

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import podresources, waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, SECOND, only, rule

NAME = "example.com/either"
DIRECTORIES = {"classic": "device-plugins", "plugins-registry": "plugins_registry"}

either_way = pytest.mark.parametrize("way", DIRECTORIES)


def start(running: Cluster, daemon: Daemon, way: str) -> None:
    """Start a daemon that registers two devices in that way."""
    daemon.configure(only(rule(NAME, FIRST, SECOND), kubelet={"registration": way}))
    daemon.start()
    running.await_counts(NAME, 2, 2)


@either_way
def test_devices_are_counted_given_and_followed(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost, way: str
) -> None:
    start(running, daemon, way)
    assert pods.run("user", {NAME: 1}).nodes
    host.bind(SECOND, None)
    running.await_counts(NAME, 2, 1)
    host.bind(SECOND, "vfio-pci")
    running.await_counts(NAME, 2, 2)


@either_way
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_new_kubelet_has_the_devices_again(
    running: Cluster, daemon: Daemon, way: str, number: signal.Signals
) -> None:
    start(running, daemon, way)
    running.kubelet.stop(number)
    running.kubelet.start()
    running.kubelet.await_ready()
    waiting.until(
        lambda: podresources.allocatable(running.kubelet.directory)[NAME] == 2, "the new kubelet has both"
    )
    running.await_counts(NAME, 2, 2)


@either_way
def test_a_daemon_that_was_killed_is_registered_again_and_leaves_no_second_socket(
    running: Cluster, daemon: Daemon, way: str
) -> None:
    start(running, daemon, way)
    daemon.stop(signal.SIGKILL)
    running.await_counts(NAME, 2, 0)
    daemon.start()
    running.await_counts(NAME, 2, 2)
    assert len(sockets(running, way)) == 1


@either_way
def test_a_socket_that_somebody_removed_is_made_again(running: Cluster, daemon: Daemon, way: str) -> None:
    start(running, daemon, way)
    (old,) = sockets(running, way)
    (running.kubelet.directory / DIRECTORIES[way] / old).unlink()
    waiting.until(lambda: sockets(running, way), "there is a socket again")
    daemon.await_registered()
    running.await_counts(NAME, 2, 2)


def sockets(running: Cluster, way: str) -> list[str]:
    """The daemon's sockets in the directory of that way."""
    directory = running.kubelet.directory / DIRECTORIES[way]
    return [path.name for path in directory.glob("nodeagent-*.sock")]
