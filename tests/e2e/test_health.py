# SPDX-License-Identifier: Apache-2.0
"""A device that fails below a running pod shows in the status of that pod (KEP-4680)."""

from __future__ import annotations

from typing import Any

from nodeagent.sim.host import SimulatedHost
from tests.e2e import waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, only, rule

NAME = "example.com/sick"


def health(pod: Any) -> dict[str, str]:
    """Device id → health, from the status of the container."""
    told = pod["status"]["containerStatuses"][0].get("allocatedResourcesStatus", ())
    return {each["resourceID"]: each["health"] for entry in told for each in entry["resources"]}


def test_a_device_that_falls_off_the_bus_is_unhealthy_in_the_status_of_its_pod(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    daemon.configure(only(rule(NAME, FIRST)))
    daemon.start()
    running.await_counts(NAME, 1, 1)
    pods.run("patient", {NAME: 1})
    waiting.until(lambda: health(pods.get("patient")) == {FIRST: "Healthy"}, "the pod's device is Healthy")
    waiting.until(lambda: FIRST in daemon.status()["holders"], "the daemon knows the holder")
    host.unplug(FIRST)
    waiting.until(lambda: health(pods.get("patient")) == {FIRST: "Unhealthy"}, "it is Unhealthy", 30.0)
    running.await_counts(NAME, 1, 0)
    listed = daemon.device(FIRST)  # for good, and not only for the moment after an Allocate
    assert listed is not None
    assert listed["reason"] == "fallen-off-the-bus"
    assert pods.get("patient")["status"]["phase"] == "Running"
