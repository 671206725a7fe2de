# SPDX-License-Identifier: Apache-2.0
"""The node that every black-box test starts from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blackbox.harness import Node


@pytest.fixture
def node(tmp_path: Path, loop_may_block: None) -> Node:
    """An empty simulated host; nothing runs on it yet. The loop of a test is not the daemon's."""
    return Node(tmp_path)
