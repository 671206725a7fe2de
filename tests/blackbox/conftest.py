# SPDX-License-Identifier: Apache-2.0
"""The node that every black-box test starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blackbox.harness import Node


@pytest.fixture(autouse=True)
def loop_may_block() -> None:
    """The loop of a black-box test is not the daemon's: it may wait for a process that starts."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """An empty simulated host; nothing runs on it yet."""
    return Node(tmp_path)
