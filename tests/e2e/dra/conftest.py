# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a cluster with containerd 2, which injects CDI devices; the daemon as the node's own user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import building, cluster
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.dra.objects import Objects
from tests.e2e.dra.settings import PATIENCE
from tests.e2e.namespace import traces
from tests.e2e.pods import Pods


@pytest.fixture(scope="package")
def running() -> Iterator[Cluster]:
    """A cluster of its own, whose runtime knows CDI."""
    programs = building.kubernetes(building.chosen(os.environ))
    with cluster.running(programs, building.launcher(), building.containerd()) as found:
        yield found
    assert traces(found.base) == []


@pytest.fixture
def driver(running: Cluster, daemon: Daemon) -> Daemon:
    """The daemon with the kubelet's client certificate, as a host installation has it; not started yet."""
    kubeconfig = Path(running.control.certificates.path("kubelet.kubeconfig"))
    (running.host / "etc").mkdir(exist_ok=True)
    (running.host / "etc/kubeconfig").write_bytes(kubeconfig.read_bytes())
    return daemon


@pytest.fixture
def pods(pods: Pods) -> Pods:
    """Pods that may wait for the kubelet's second attempt.

    On a busy machine the API server refuses its first GET of a claim ("no relationship found between node and
    this object"), because its authorizer does not know the pod yet; the kubelet tries again after 60 to 90 s.
    """
    pods.patience = PATIENCE
    return pods


@pytest.fixture
def objects(running: Cluster) -> Iterator[Objects]:
    """Classes, claims and templates that are deleted at the end."""
    made = Objects(running.api)
    yield made
    made.close()
