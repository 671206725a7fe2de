# SPDX-License-Identifier: Apache-2.0
"""betterproto2 without what it loads to learn its own version."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from nodeagent.kubelet import lean


def told(*lines: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_library_is_whole_and_knows_its_version() -> None:
    ask = "from nodeagent.kubelet.api.deviceplugin import v1beta1", "print(v1beta1.betterproto2.__version__)"
    assert told(*ask) == metadata.version("betterproto2")


@pytest.mark.parametrize("module", ["importlib.metadata", "email", "zipfile"])
def test_what_only_the_question_needs_is_not_loaded(module: str) -> None:
    assert told("import sys, nodeagent.kubelet.grpc.wire", f"print({module!r} in sys.modules)") == "False"


def test_the_real_module_can_be_had_afterwards() -> None:
    ask = (
        "import nodeagent.kubelet",
        "from importlib import metadata",
        "print(metadata.distribution('anyio').version)",
    )
    assert told(*ask) == metadata.version("anyio")


def test_where_the_version_is_not_to_be_seen_the_library_is_loaded_as_always() -> None:
    with pytest.raises(ImportError, match="no version of nodeagent"):
        lean.Versions("importlib.metadata").version("nodeagent.kubelet")
    blind = (
        "import importlib.util, sys",
        "find, importlib.util.find_spec = importlib.util.find_spec, lambda name: None",
        "import nodeagent.kubelet",
        "importlib.util.find_spec = find",
        "import betterproto2",
        "print(betterproto2.__version__, 'importlib.metadata' in sys.modules)",
    )
    assert told(*blind) == f"{metadata.version('betterproto2')} True"
