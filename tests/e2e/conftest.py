# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one cluster for all tests; for each test a fresh simulated host, its pods and a daemon."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from tests.e2e import boards, building, cluster, waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.namespace import traces
from tests.e2e.pods import Pods

_OWN = Path(__file__).with_name("pytest.ini")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only ``make e2e`` collects this tier: it needs root, Go, containerd and minutes."""
    return None if config.inipath == _OWN else True


@pytest.fixture(scope="session")
def running() -> Iterator[Cluster]:
    """The cluster, for the whole session. It must leave no trace on the machine."""
    with cluster.running(building.kubernetes(building.chosen(os.environ)), building.launcher()) as found:
        yield found
    assert traces(found.base) == []


@pytest.fixture
def host(running: Cluster) -> SimulatedHost:
    """The documentation's node, new for each test, with real device nodes and a kubelet that runs.

    The directories that the cluster has mounted stay where they are.
    """
    if not running.kubelet.running:  # it crashed in another test
        running.kubelet.start()
        running.kubelet.await_ready()
    for path in running.host.iterdir():
        if path.name not in ("var", "dev"):
            shutil.rmtree(path)
    below = (each for name in ("vfio", "bus/usb") for each in (running.host / "dev" / name).rglob("*"))
    for node in (*below, running.host / "dev/kvm"):
        if not node.is_dir():
            node.unlink(missing_ok=True)
    return nodes.demo_node(running.host, mknod=True)


@pytest.fixture
def daemon(running: Cluster, host: SimulatedHost) -> Iterator[Daemon]:
    """The daemon, not started yet. None of its parts may fail."""
    made = Daemon(running.host, running.base / "daemon.log")
    made.log.unlink(missing_ok=True)
    yield made
    made.stop()
    assert not made.log.exists() or made.events("subsystem-failed") == []


@pytest.fixture
def pods(running: Cluster, daemon: Daemon) -> Iterator[Pods]:
    """Pods that are gone before the daemon is stopped."""
    made = Pods(running.api, running.base / "log" / "pods")
    yield made
    daemon.send(signal.SIGCONT)  # a kubelet that waits for its answer deletes no pods
    made.close()
    waiting.until(lambda: not any(boards.lives()), "containers of pods deleted by force have ended")
