# SPDX-License-Identifier: Apache-2.0
"""A device goes at the worst moment: while the kubelet waits for the answer to its Allocate."""

from __future__ import annotations

from nodeagent.sim.host import SimulatedHost
from tests.e2e import waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, SECOND, only, rule
from tests.sim import fifos

NAME = "example.com/vanishing"


def test_a_device_that_vanishes_in_the_middle_of_its_allocate_leaves_the_kubelet_alive(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    daemon.configure(only(rule(NAME, FIRST, SECOND)))
    daemon.start()
    running.await_counts(NAME, 2, 2)
    log = running.kubelet.log.stat().st_size
    fifos.hang(host, FIRST, "enable")  # the answer waits for this read
    pods.start("unlucky", {NAME: 2})
    waiting.until(lambda: running.kubelet.allocates(log), "the Allocate is on its way")
    host.unplug(SECOND)
    running.await_counts(NAME, 2, 0, seconds=8.0)  # the one is still listed, the other cannot be read
    fifos.unhang(host, FIRST, "enable")
    status = pods.await_phase("unlucky", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert SECOND in status["message"]
    running.await_counts(NAME, 1, 1)
    assert running.kubelet.running
    assert pods.run("lucky", {NAME: 1}).env
