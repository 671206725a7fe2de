# SPDX-License-Identifier: Apache-2.0
"""Devices given as CDI names. containerd 1.6, Debian 12's, takes such an answer and injects nothing."""

from __future__ import annotations

import pytest

from tests.e2e import runtime
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, nodes_of, only, rule

NAME = "example.com/cdi"


@pytest.mark.skipif(
    runtime.version() < (1, 7), reason="this containerd ignores CDI names: 1.7 or newer needed"
)
def test_a_pod_gets_its_nodes_through_cdi(running: Cluster, daemon: Daemon, pods: Pods) -> None:
    daemon.configure(only({**rule(NAME, FIRST), "cdi": True}))
    daemon.start()
    running.await_counts(NAME, 1, 1)
    assert pods.run("injected", {NAME: 1}).nodes == nodes_of(FIRST)
