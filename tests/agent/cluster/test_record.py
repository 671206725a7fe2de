# SPDX-License-Identifier: Apache-2.0
"""What the cluster said last comes back whole, for root alone, or not at all."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.agent.cluster.record import Record, look, of_cr, of_node, read, write
from nodeagent.base.errors import KernelRefused
from nodeagent.base.sealed import ASIDE, Broken

CR = {"metadata": {"name": "kubevirt", "managedFields": [1]}, "spec": {"configuration": {"ä": ["1"]}}}
SAID = Record(CR, {"kubernetes.io/hostname": "node2"}, 1790000000.5)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "cluster.json"
    assert read(str(path)) == Record()
    for said in (SAID, Record(None, {}, 2.0), Record()):
        write(str(path), said)
        assert read(str(path)) == look(str(path)) == said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["cluster.json"]


@pytest.mark.parametrize("change", ["cut", "other labels", "no JSON", "not ours", "empty", "a list", "deep"])
def test_a_damaged_file_is_set_aside_and_said(tmp_path: Path, change: str) -> None:
    path = tmp_path / "cluster.json"
    write(str(path), SAID)
    text = path.read_text()
    damaged = {
        "cut": text[:-10],
        "other labels": text.replace("node2", "node3"),
        "no JSON": "{",
        "not ours": json.dumps({"body": {}}),
        "empty": "",
        "a list": "[1]",
        "deep": "[" * 100_000,
    }[change]
    path.write_text(damaged)
    assert look(str(path)) == Record()
    assert path.read_text() == damaged, "who only looks changes nothing"
    with pytest.raises(Broken, match=r"cluster\.json\.broken"):
        read(str(path))
    assert Path(f"{path}{ASIDE}").read_text() == damaged
    assert read(str(path)) == Record()


@given(st.binary())
def test_any_content_is_a_record_or_broken(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("record") / "cluster.json"
    path.write_bytes(data)
    with pytest.raises(Broken):
        read(str(path))


def test_a_directory_that_cannot_be_written_to_is_told_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("")
    with pytest.raises(KernelRefused, match=r"cluster\.json"):
        write(str(tmp_path / "lib" / "cluster.json"), SAID)


def test_what_nobody_reads_is_not_kept() -> None:
    named = {"name": "n", "labels": {"a": "b"}}
    many = {
        "metadata": named | {"managedFields": [1]},
        "spec": {"x": 1},
        "status": {"phase": "Deployed", "y": 2},
    }
    assert of_cr(many) == {"metadata": named, "spec": {"x": 1}, "status": {"phase": "Deployed"}}
    assert of_node(many) == {"metadata": named}
    assert of_cr({"metadata": 7, "status": []}) == {"metadata": 7, "status": {}}
    assert of_node({}) == {"metadata": None}
