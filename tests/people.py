# SPDX-License-Identifier: Apache-2.0
"""``nodeagent`` as somebody else than root runs it, and as a root whom something confines. For root."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

# The interpreter and its modules may be where nobody else can read them: all are loaded before.
_AS_NOBODY = f"""
import difflib, encodings.idna, encodings.utf_8_sig, importlib, os, pkgutil, sys
import nodeagent
for each in pkgutil.walk_packages(nodeagent.__path__, "nodeagent."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
from nodeagent.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
_CONFINED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


def as_nobody(*arguments: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """One run by an ordinary user."""
    return _run([sys.executable, "-c", _AS_NOBODY, *arguments], cwd)


def as_confined_root(*arguments: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """One run by a root whom modes of files bind, as a sandbox would."""
    return _run([*_CONFINED, sys.executable, "-m", "nodeagent", *arguments], cwd)


def as_oneself(*arguments: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """One run by whoever runs the tests."""
    return _run([sys.executable, "-m", "nodeagent", *arguments], cwd)


def _run(command: list[str], cwd: str | None) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environ, cwd=cwd
    )
