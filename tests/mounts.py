# SPDX-License-Identifier: Apache-2.0
"""File systems that are mounted over directories for the time of a test. For root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@contextmanager
def mounted(path: Path) -> Iterator[None]:
    """A file system of its own over the directory."""
    subprocess.run(["mount", "-t", "tmpfs", "nodeagent-test", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
