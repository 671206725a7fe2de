# SPDX-License-Identifier: Apache-2.0
"""Socket files that are left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.base import sockets
from tests.limits import free_descriptors


def test_a_socket_that_cannot_be_made_costs_no_descriptor(tmp_path: Path) -> None:
    with free_descriptors(1):
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                sockets.SocketFile.bind(tmp_path, "x.sock")
        os.close(os.open(tmp_path, os.O_RDONLY))
    assert list(tmp_path.iterdir()) == []
