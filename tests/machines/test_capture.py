# SPDX-License-Identifier: Apache-2.0
"""Captured hosts become trees; documents that are none, or that lead out of the tree, are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.base.errors import ConfigError
from nodeagent.kernel.root import Root
from tests.machines.capture import materialise


def document(path: Path, tree: dict[str, Any]) -> Path:
    file = path / "host.json"
    file.write_text(json.dumps({"meta": {"kernel": "6.12"}, "tree": tree}))
    return file


def test_each_kind_of_entry_is_made(tmp_path: Path) -> None:
    file = document(
        tmp_path,
        {
            "/sys/a/text": {"text": "x\n", "mode": "0200"},
            "/sys/a/link": {"link": "../b"},
            "/sys/b": {"dir": True},
            "/dev/vfio/1": {"char": [242, 1], "mode": "0600"},
            "/sys/a/uevent": {"error": "HANGS"},
            "/sys/a/carrier": {"error": "EINVAL"},
        },
    )
    out = tmp_path / "out"
    assert materialise(file, out) == {"kernel": "6.12"}
    root = Root(out)
    assert root.text("/sys/a/text") == "x"
    assert root.link("/sys/a/link") == "b"
    assert root.names("/sys/b") == ()
    assert root.exists("/dev/vfio/1")
    assert (out / "sys/a/uevent").is_fifo()
    assert root.text("/sys/a/carrier") is None


@pytest.mark.parametrize(
    "tree",
    [
        {"/../x": {"text": ""}},
        {"x": {"text": ""}},
        {"/a/../../x": {"text": ""}},
        {"/a": {"link": "/etc"}},
        {"/a/b": {"link": "../../etc"}},
    ],
)
def test_a_document_that_leads_out_of_the_tree_is_refused(tmp_path: Path, tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="leads out"):
        materialise(document(tmp_path, tree), tmp_path / "out")


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"meta": {}}'])
def test_what_is_no_captured_host_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match="no captured host"):
        materialise(tmp_path / "x.json", tmp_path / "out")
    with pytest.raises(ConfigError, match="no captured host"):
        materialise(tmp_path / "absent.json", tmp_path / "out")
