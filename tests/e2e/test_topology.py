# SPDX-License-Identifier: Apache-2.0
"""Topology hints below the policy best-effort, which the kubelet of this tier has."""

from __future__ import annotations

from nodeagent.sim.host import SimulatedHost
from tests.e2e import podresources
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, SECOND, only, rule


def test_devices_with_and_without_a_numa_node_are_given_and_the_kubelet_knows_which(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    host.write(SECOND, "numa_node", "-1")
    daemon.configure(only(rule("example.com/near", FIRST), rule("example.com/anywhere", SECOND)))
    daemon.start()
    running.await_counts("example.com/near", 1, 1)
    running.await_counts("example.com/anywhere", 1, 1)
    pods.run("near", {"example.com/near": 1})
    pods.run("anywhere", {"example.com/anywhere": 1})
    found = podresources.holders(running.kubelet.directory)
    assert {device: found[device].numa for device in (FIRST, SECOND)} == {FIRST: 0, SECOND: None}
    pods.delete("near")
    pods.delete("anywhere")
    both = pods.run("both", {"example.com/near": 1, "example.com/anywhere": 1})
    assert both.env["PCI_RESOURCE_EXAMPLE_COM_ANYWHERE"] == SECOND
