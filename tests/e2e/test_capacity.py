# SPDX-License-Identifier: Apache-2.0
"""What the Node object shows of devices that pass, fail and leave."""

from __future__ import annotations

from nodeagent.sim.host import SimulatedHost
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.resources import FIRST, FOURTH, GPU, SECOND, TESLA, THIRD, only, rule


def test_the_node_counts_passing_devices_and_lists_unusable_ones(running: Cluster, daemon: Daemon) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    running.await_counts(TESLA, 1, 0)


def test_a_device_that_loses_its_driver_is_not_allocatable_until_it_is_back(
    running: Cluster, daemon: Daemon, host: SimulatedHost
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    host.bind(FIRST, "nvidia")
    running.await_counts(GPU, 4, 3)
    host.bind(FIRST, "vfio-pci")
    running.await_counts(GPU, 4, 4)


def test_an_unplugged_device_leaves_the_node_and_comes_back(
    running: Cluster, daemon: Daemon, host: SimulatedHost
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    host.unplug(FIRST)
    running.await_counts(GPU, 3, 3)
    host.plug(FIRST)
    host.bind(FIRST, "vfio-pci")
    running.await_counts(GPU, 4, 4)


def test_a_resource_stays_registered_when_its_last_device_has_gone(
    running: Cluster, daemon: Daemon, host: SimulatedHost
) -> None:
    daemon.configure(only(rule("example.com/all", FIRST, SECOND, THIRD, FOURTH)))
    daemon.start()
    running.await_counts("example.com/all", 4, 4)
    for address in (FIRST, SECOND, THIRD, FOURTH):
        host.unplug(address)
    running.await_counts("example.com/all", 0, 0)
    host.plug(SECOND)
    host.bind(SECOND, "vfio-pci")
    running.await_counts("example.com/all", 1, 1)
    assert not daemon.events("registration-lost")


def test_a_new_rule_in_the_configuration_reaches_the_node_without_a_restart(
    running: Cluster, daemon: Daemon
) -> None:
    daemon.configure(only(rule("example.com/first", FIRST)))
    daemon.start()
    running.await_counts("example.com/first", 1, 1)
    daemon.configure(only(rule("example.com/first", FIRST), rule("example.com/second", SECOND)))
    running.await_counts("example.com/second", 1, 1)
