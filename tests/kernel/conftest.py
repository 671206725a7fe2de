# SPDX-License-Identifier: Apache-2.0
"""A small simulated host for those that read it, and write below its /run."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.sim.host import SimulatedHost
from tests.sim import hosts


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """Three functions on vfio-pci, each in a group of its own."""
    return hosts.many(tmp_path, 3)


@pytest.fixture
def root(host: SimulatedHost) -> Root:
    """The root of its tree."""
    return Root(host.directory)
