# SPDX-License-Identifier: Apache-2.0
"""Resources that only the Node still has, with a real kubelet and the rights of the chart."""

from __future__ import annotations

import signal
from typing import Any

from tests.e2e import kubevirt, waiting
from tests.e2e.cluster import NODE, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.test_cluster import OTHER, SERVED, SETTINGS, configure, follower, heard, permitted

__all__ = ["follower"]  # a fixture

CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
SPREAD = 45.0  # seconds; a removal waits for up to 32
JSON_PATCH = "application/json-patch+json"


def renamed(running: Cluster, follower: Daemon) -> None:
    """SERVED was offered, and is called OTHER now; the kubelet knows both."""
    kubevirt.create(running.api, permitted(SERVED))
    follower.configure(
        SETTINGS | {"cluster": {"staleResources": "remove", "events": False}, "timing": {"resync": "1s"}}
    )
    follower.start()
    running.await_counts(SERVED, 4, 4)
    configure(running, permitted(OTHER))
    running.await_counts(OTHER, 4, 4)


def restart(running: Cluster, *, forgets: bool) -> None:
    """Another kubelet; without its checkpoint it knows only what is registered with it."""
    running.kubelet.stop(signal.SIGKILL)
    if forgets:
        (running.kubelet.directory / CHECKPOINT).unlink()
    running.kubelet.start()
    running.kubelet.await_ready()
    running.await_counts(OTHER, 4, 4)


def stale(follower: Daemon) -> dict[str, str]:
    """Resource → why it cannot be removed, or ""."""
    return {each["resource"]: each.get("message", "") for each in heard(follower, "stale") or ()}


def removed(follower: Daemon) -> list[str]:
    """What the daemon says that it has removed."""
    return [each["resource"] for each in follower.events("stale-resource-removed")]


def removal(resource: str) -> list[dict[str, Any]]:
    """What an administrator would patch."""
    name = resource.replace("/", "~1")
    return [{"op": "remove", "path": f"/status/{key}/{name}"} for key in ("capacity", "allocatable")]


def test_a_forgotten_resource_is_taken_from_the_node_and_does_not_come_back(
    running: Cluster, follower: Daemon
) -> None:
    renamed(running, follower)
    restart(running, forgets=False)
    running.await_counts(SERVED, 0, 0)
    restart(running, forgets=True)
    waiting.until(lambda: running.counts(SERVED) is None, "it is taken from the Node", SPREAD)
    waiting.until(lambda: SERVED in (heard(follower, "staleRemoved") or ()), "that is told")
    assert removed(follower).count(SERVED) == 1
    restart(running, forgets=False)
    assert running.counts(SERVED) is None, "a kubelet that has not known it does not write it"
    configure(running, permitted(SERVED))
    running.await_counts(SERVED, 4, 4)


def test_a_resource_that_the_kubelet_still_knows_is_left_to_it(running: Cluster, follower: Daemon) -> None:
    renamed(running, follower)
    restart(running, forgets=False)
    running.await_counts(SERVED, 0, 0)
    waiting.until(lambda: "still knows" in stale(follower).get(SERVED, ""), "that is told")
    running.api.ask("PATCH", f"{NODE}/status", removal(SERVED), JSON_PATCH)
    running.await_counts(SERVED, 0, 0)  # who takes it away now sees it come back
    assert removed(follower) == []
