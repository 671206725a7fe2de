# SPDX-License-Identifier: Apache-2.0
"""CDI files: whole or not at all, ours only."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from nodeagent.base.errors import KernelRefused
from nodeagent.kubelet import cdi
from tests.facts import names


def test_a_file_is_written_for_all_to_read_and_nothing_else_is_left(tmp_path: Path) -> None:
    directory = tmp_path / "etc" / "cdi"
    cdi.write(str(directory), "example.com/a", {"cdiVersion": "0.5.0"})
    (found,) = directory.iterdir()
    assert found.name == cdi.file_name("example.com/a")
    assert json.loads(found.read_text()) == {"cdiVersion": "0.5.0"}
    assert stat.S_IMODE(found.stat().st_mode) == 0o644


def test_a_second_write_replaces_the_first(tmp_path: Path) -> None:
    for number in (1, 2):
        cdi.write(str(tmp_path), "example.com/a", {"number": number})
    assert json.loads((tmp_path / cdi.file_name("example.com/a")).read_text()) == {"number": 2}


def test_names_that_differ_in_one_character_have_two_files() -> None:
    names = {cdi.file_name(name) for name in ("a.com/b-c", "a.com/b_c", "a.com/b/c")}
    assert len(names) == 3
    assert all(name.startswith("nodeagent-") and name.endswith(".json") for name in names)


def test_what_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")
    with pytest.raises(KernelRefused) as caught:
        cdi.write(str(tmp_path / "cdi"), "example.com/a", {})
    assert caught.value.path.endswith(cdi.file_name("example.com/a"))
    names(caught.value.hint, "cdi: false")


def test_only_our_files_of_unwanted_resources_are_removed(tmp_path: Path) -> None:
    for name in ("keep/a", "drop/b"):
        cdi.write(str(tmp_path), name, {})
    (tmp_path / "vendor.json").write_text("{}")
    (tmp_path / "nodeagent-half.tmp").write_text("{")
    cdi.clean(str(tmp_path), ["keep/a"])
    assert sorted(os.listdir(tmp_path)) == [cdi.file_name("keep/a"), "vendor.json"]


def test_what_cannot_be_removed_stays_and_hinders_nothing(tmp_path: Path) -> None:
    (tmp_path / "nodeagent-a").mkdir()
    (tmp_path / "nodeagent-b").write_text("")
    cdi.clean(str(tmp_path), [])
    assert os.listdir(tmp_path) == ["nodeagent-a"]


def test_an_absent_directory_has_nothing_to_clean(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cdi.clean(str(tmp_path / "no"), [])
    cdi.clean(str(tmp_path / "file"), [])
    assert os.listdir(tmp_path) == ["file"]
