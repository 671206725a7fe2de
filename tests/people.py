# SPDX-License-Identifier: Apache-2.0
"""``nodeagent`` as somebody else than root runs it, and as a root whom something confines. For root."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import forkserver

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

_CONFINED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter while this is open; pytest's own are for one user alone."""
    with tempfile.TemporaryDirectory(prefix="nodeagent-") as made:
        directory = Path(made)
        directory.chmod(0o755)
        yield directory


def as_nobody(*arguments: str, cwd: str = ".") -> subprocess.CompletedProcess[str]:
    """Run nodeagent as an ordinary user, who need not be able to read its modules: they are loaded before."""
    return forkserver.run(arguments, _environ(), user=NOBODY, directory=cwd)


def as_confined_root(*arguments: str, cwd: str = ".") -> subprocess.CompletedProcess[str]:
    """Run nodeagent as a root that modes of files bind, as a sandbox would."""
    command = [*_CONFINED, sys.executable, "-m", "nodeagent", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=_environ(), cwd=cwd
    )


def as_oneself(*arguments: str, cwd: str = ".") -> subprocess.CompletedProcess[str]:
    """Run nodeagent as the user that runs the tests."""
    return forkserver.run(arguments, _environ(), directory=cwd)


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
