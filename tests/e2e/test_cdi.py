# SPDX-License-Identifier: Apache-2.0
"""Devices given as CDI names, on a node of its own with containerd 2.

containerd 1.6, which Debian 12 has, takes such an answer and injects nothing, without a word.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import building, cluster
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.namespace import traces
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, SECOND, nodes_of, only, rule

NAME = "example.com/cdi"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """A second cluster, whose runtime knows CDI."""
    programs = building.kubernetes(building.chosen(os.environ))
    with cluster.running(programs, building.launcher(), building.containerd()) as found:
        yield found
    assert traces(found.base) == []


def test_a_pod_gets_its_nodes_through_cdi(running: Cluster, daemon: Daemon, pods: Pods) -> None:
    daemon.configure(only({**rule(NAME, FIRST, SECOND), "cdi": True}))
    daemon.start()
    running.await_counts(NAME, 2, 2)
    given = pods.run("injected", {NAME: 2}, f"/bin/launcher hostDevices {NAME} {NAME}")
    assert given.nodes == nodes_of(FIRST, SECOND)
    assert set(given.env["PCI_RESOURCE_EXAMPLE_COM_CDI"].split(",")) == {FIRST, SECOND}


def test_a_device_that_came_later_is_injected_too(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    host.unplug(FIRST)
    daemon.configure(only({**rule(NAME, FIRST), "cdi": True}))
    daemon.start()
    running.await_counts(NAME, 0, 0)
    host.plug(FIRST)
    host.bind(FIRST, "vfio-pci")
    running.await_counts(NAME, 1, 1)
    assert pods.run("late", {NAME: 1}).nodes == nodes_of(FIRST)
