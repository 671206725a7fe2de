# SPDX-License-Identifier: Apache-2.0
"""Values on disk: a section is whole, of its type, or set aside, and the others stay as they are."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.base import log
from nodeagent.base.errors import KernelRefused
from nodeagent.base.state import ASIDE, Damaged, Section, SectionId, StateFile
from tests import exhausted
from tests.conftest import Said
from tests.facts import names

FILE = StateFile("/lib/state.json", 0o600)


def _number(data: dict[str, Any]) -> int:
    return int(data["number"]) + int(data.get("more", 0))


NUMBER_ID = SectionId(FILE, "number")
NUMBER = Section(
    NUMBER_ID,
    0,
    _number,
    lambda number: {"number": number},
    "without it all is lost",
)
OTHER: Section[dict[str, Any]] = Section(SectionId(FILE, "other"), {}, dict, dict, "")
BROKEN_FILES = ["", "{", "[]", "null", "[" * 100_000, '"\\udcff"']
BROKEN_SECTIONS = ['{"number": "x"}', "{}", "[]", "7"]


def put(folder: Path, text: str, path: str = FILE.path) -> Path:
    """A file with that text."""
    at = folder / path[1:]
    at.parent.mkdir(exist_ok=True)
    at.write_text(text)
    return at


def test_a_saved_value_is_read_again(tmp_path: Path) -> None:
    prefix = str(tmp_path)
    NUMBER.save(prefix, 7)
    assert (NUMBER.read(prefix), NUMBER.peek(prefix), NUMBER.load(prefix)) == (7, 7, 7)
    assert NUMBER_ID.exists(prefix)
    assert stat.S_IMODE((tmp_path / "lib/state.json").stat().st_mode) == 0o600
    assert os.listdir(tmp_path / "lib") == ["state.json"]


def test_without_a_section_it_is_the_empty_value_and_a_file_without_sections_is_removed(
    tmp_path: Path,
) -> None:
    prefix = str(tmp_path)
    assert (NUMBER.load(prefix), NUMBER_ID.exists(prefix)) == (0, False)
    NUMBER.save(prefix, 7)
    OTHER.save(prefix, {"a": 1})
    for _ in range(2):
        NUMBER.save(prefix, 0)
        assert (NUMBER_ID.exists(prefix), OTHER.load(prefix)) == (False, {"a": 1})
    OTHER.save(prefix, {})
    assert os.listdir(tmp_path / "lib") == []


def test_sections_that_are_saved_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    sections: list[Section[dict[str, Any]]] = [
        Section(SectionId(FILE, str(number)), {}, dict, dict, "") for number in range(8)
    ]

    def save(section: Section[dict[str, Any]]) -> None:
        for number in range(20):
            section.save(str(tmp_path), {"number": number})

    threads = [threading.Thread(target=save, args=(each,)) for each in sections]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [each.read(str(tmp_path)) for each in sections] == [{"number": 19}] * 8


@pytest.mark.parametrize("text", BROKEN_FILES)
def test_a_damaged_file_is_set_aside_and_logged_once_by_its_writer(
    tmp_path: Path, said: Said, text: str
) -> None:
    path, prefix = put(tmp_path, text), str(tmp_path)
    with pytest.raises(Damaged):
        NUMBER.read(prefix)
    assert (NUMBER.peek(prefix), NUMBER_ID.exists(prefix)) == (0, True)
    assert path.read_text() == text, "others leave it alone"
    assert said(log.STATE_DAMAGED) == []
    assert [NUMBER.load(prefix) for _ in range(2)] == [0, 0]
    (line,) = said(log.STATE_DAMAGED)
    names(str(line["error"]), f"{path}{ASIDE}")
    assert Path(f"{path}{ASIDE}").read_text() == text


@pytest.mark.parametrize("text", BROKEN_SECTIONS)
def test_a_damaged_section_is_set_aside_and_the_others_stay(tmp_path: Path, said: Said, text: str) -> None:
    prefix = str(tmp_path)
    path = put(tmp_path, f'{{"number": {text}, "other": {{"a": 1}}}}')
    before = path.read_text()
    assert NUMBER.peek(prefix) == 0
    assert path.read_text() == before
    assert [NUMBER.load(prefix) for _ in range(2)] == [0, 0]
    assert len(said(log.STATE_DAMAGED)) == 1
    assert Path(f"{path}{ASIDE}").read_text() == before
    assert json.loads(path.read_text()) == {"other": {"a": 1}}


@given(st.binary())
def test_any_content_is_a_value_or_damaged(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    prefix = tmp_path_factory.mktemp("state")
    put(prefix, "").write_bytes(data)
    with pytest.raises(Damaged):
        NUMBER.read(str(prefix))


def test_a_pipe_or_a_directory_counts_as_no_file(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    os.mkfifo(tmp_path / "lib/state.json")
    assert NUMBER.load(str(tmp_path)) == 0
    (tmp_path / "lib/state.json").unlink()
    (tmp_path / "lib/state.json").mkdir()
    assert NUMBER.load(str(tmp_path)) == 0


def test_a_file_that_cannot_be_opened_now_is_not_the_empty_value_and_is_not_replaced(tmp_path: Path) -> None:
    prefix = str(tmp_path)
    OTHER.save(prefix, {"a": 1})
    with exhausted.no_descriptors():
        with pytest.raises(KernelRefused):
            NUMBER.load(prefix)
        with pytest.raises(KernelRefused):
            NUMBER.save(prefix, 7)
    assert OTHER.read(prefix) == {"a": 1}


def test_a_file_that_cannot_be_read_is_not_replaced_for_its_other_sections(tmp_path: Path) -> None:
    put(tmp_path, "").unlink()
    (tmp_path / FILE.path[1:]).symlink_to(FILE.path.rpartition("/")[2])  # ELOOP
    assert NUMBER.load(str(tmp_path)) == 0
    with pytest.raises(KernelRefused):
        NUMBER.save(str(tmp_path), 7)


def test_a_place_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("a file where a directory should be")
    with pytest.raises(KernelRefused, match=r"lib/state\.json") as caught:
        NUMBER.save(str(tmp_path), 7)
    names(caught.value.hint, "without it all is lost")


# The files of the release before
