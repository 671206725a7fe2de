# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects in files: as kubectl writes them, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodeagent.base.errors import ConfigError
from nodeagent.config import manifests

OBJECT = {"kind": "KubeVirt", "spec": {"enabled": True, "selector": "8086:5845"}}
YAML = "kind: KubeVirt\nspec: {enabled: true, selector: 8086:5845}\n"


@pytest.mark.parametrize(
    ("text", "objects"),
    [
        (YAML, [OBJECT]),
        (json.dumps(OBJECT, indent="\t"), [OBJECT]),
        (f"---\n{YAML}---\n---\n{YAML}", [OBJECT, OBJECT]),
        (json.dumps({"kind": "List", "items": [OBJECT, 7]}), [OBJECT, 7]),
        ("kind: KubeVirt\ncreated: 2026-01-01T00:00:00Z\nitems: none\n", None),
        ("", []),
        (
            "[0403, 2838, -1, 0, 1e04, 0b01, 1_0, 12:34]",
            [["0403", 2838, -1, 0, "1e04", "0b01", "1_0", "12:34"]],
        ),
        ("7", [7]),
    ],
)
def test_objects_are_read_as_kubectl_reads_them(tmp_path: Path, text: str, objects: object) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    found = manifests.read(str(path))
    assert found == objects if objects is not None else found[0]["items"] == "none"


@pytest.mark.parametrize(
    "content",
    [
        b"a: [",
        b"\xff\xfe\x00",
        b"a: *nobody",
        b"? {a: b}\n",
        b"!!python/none x",
        b"[" * 100_000,
        b"x: 2026-13-45\n",
    ],
)
def test_what_is_no_object_is_told_in_two_lines(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        manifests.read(str(path))
    first, second = caught.value.lines().splitlines()
    assert first.startswith(f"{path}: this is neither YAML nor JSON")
    assert "kubectl" in second


def test_a_file_that_is_missing_or_too_large_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        manifests.read(str(tmp_path / "none"))
    large = tmp_path / "large"
    large.write_bytes(b" " * (manifests.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        manifests.read(str(large))
