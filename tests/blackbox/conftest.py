# SPDX-License-Identifier: Apache-2.0
"""The node that every black-box test starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.base.timeouts import SCALE
from tests.blackbox.harness import Node


@pytest.fixture(autouse=True)
def loop_may_block() -> None:
    """The loop of a black-box test is not the daemon's: it may wait for a process that starts."""


@pytest.fixture(autouse=True)
def time_scale(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale the time limits of the daemons of a test that has the marker ``time_scale``."""
    marker = request.node.get_closest_marker("time_scale")
    if marker is not None:
        monkeypatch.setenv(SCALE, str(marker.args[0]))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """An empty simulated host; nothing runs on it yet."""
    return Node(tmp_path)
