# SPDX-License-Identifier: Apache-2.0
"""Settings with rules whose devices are allocated by DRA, and the start of a daemon with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.e2e import node, waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.dra.slices import KubeletLog, await_devices
from tests.e2e.resources import only, rule

PATIENCE = 120.0  # seconds for the start of a pod with a claim


def by_dra(name: str, *addresses: str, **fields: object) -> dict[str, object]:
    """A rule that offers these addresses by DRA."""
    return {**rule(name, *addresses), "via": "dra", **fields}


def settings(*rules: dict[str, object]) -> dict[str, object]:
    """Settings with these rules, the API server, and without the KubeVirt CR."""
    return only(
        *rules,
        kubeconfig="/etc/kubeconfig",
        node={"name": node.NAME},
        kubevirt={"enabled": False},
    )


def launch(
    running: Cluster, driver: Daemon, devices: Iterable[str], *rules: dict[str, object]
) -> dict[str, Any]:
    """Start the daemon with these rules; return its devices when they are published.

    Slices of the daemon before may be there already, so that pods are bound before the driver is registered.
    """
    log = KubeletLog(running.kubelet.log)
    driver.configure(settings(*rules))
    driver.launch()
    waiting.until(log.registered_at, "the kubelet has registered the driver")
    return await_devices(running.api, devices)
