# SPDX-License-Identifier: Apache-2.0
"""What the cluster said last comes back whole, for root alone, or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from nodeagent.agent.cluster.record import FILE, Record, of_cr, of_node
from nodeagent.base import log
from tests.conftest import Said

CR = {"metadata": {"name": "kubevirt", "managedFields": [1]}, "spec": {"configuration": {"ä": ["1"]}}}
SAID = Record(CR, {"kubernetes.io/hostname": "node2"}, 1790000000.5)


def test_a_saved_record_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "cluster.json"
    assert FILE.load(str(path)) == Record()
    for said in (SAID, Record(None, {}, 2.0)):
        FILE.save(str(path), said)
        assert FILE.load(str(path)) == FILE.peek(str(path)) == said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ['{"x": 1}', '{"labels": {"a": 1}}', '{"kubevirt": []}', '{"at": "now"}'])
def test_a_record_of_other_types_is_set_aside_and_logged(tmp_path: Path, text: str, said: Said) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(text)
    assert FILE.load(str(path)) == Record()
    assert len(said(log.CLUSTER_RECORD_BROKEN)) == 1


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
