# SPDX-License-Identifier: Apache-2.0
"""The generated code."""

from __future__ import annotations

import filecmp
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_code_is_what_the_proto_files_say(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "proto" / "generate.py", tmp_path],
        check=True,
        capture_output=True,
    )
    committed = ROOT / "nodeagent" / "kubelet" / "api"
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    kept = sorted(
        path.relative_to(committed)
        for path in committed.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    assert made == kept
    _, different, failed = filecmp.cmpfiles(tmp_path, committed, made, shallow=False)
    assert (different, failed) == ([], [])


def test_serving_needs_neither_google_protobuf_nor_grpcio() -> None:
    code = (
        "import sys, nodeagent.kubelet.endpoint\n"
        "from nodeagent.kubelet.api.podresources import v1\n"
        "from nodeagent.kubelet.api.pluginregistration import pluginregistration\n"
        "print([n for n in ('google.protobuf', 'grpc', 'pydantic') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
