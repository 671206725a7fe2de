# SPDX-License-Identifier: Apache-2.0
"""A value on disk: whole, of its type, or set aside."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.base import log
from nodeagent.base.errors import KernelRefused
from nodeagent.base.files import ASIDE, Damaged, StateFile
from tests import exhausted
from tests.conftest import Said
from tests.facts import names


def _number(data: dict[str, Any]) -> int:
    return int(data["number"])


FILE = StateFile(
    0, _number, lambda number: {"number": number}, "without it all is lost", log.USB_RECORD_BROKEN
)
DAMAGED = ["", "{", "[]", "null", '{"number": "x"}', "{}", "[" * 100_000, '"\\udcff"']


def test_a_saved_value_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "a.json"
    FILE.save(str(path), 7)
    assert (FILE.read(str(path)), FILE.peek(str(path)), FILE.load(str(path))) == (7, 7, 7)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["a.json"]


def test_without_a_file_it_is_the_empty_value_and_the_empty_value_has_no_file(tmp_path: Path) -> None:
    path = str(tmp_path / "a.json")
    assert FILE.load(path) == 0
    FILE.save(path, 7)
    for _ in range(2):
        FILE.save(path, 0)
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_set_aside_and_logged_once_by_its_writer(
    tmp_path: Path, said: Said, text: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(Damaged):
        FILE.read(str(path))
    assert FILE.peek(str(path)) == 0
    assert path.read_text() == text, "others leave it alone"
    assert said(log.USB_RECORD_BROKEN) == []
    assert [FILE.load(str(path)) for _ in range(2)] == [0, 0]
    (line,) = said(log.USB_RECORD_BROKEN)
    names(str(line["error"]), f"{path}{ASIDE}")
    assert Path(f"{path}{ASIDE}").read_text() == text


@given(st.binary())
def test_any_content_is_a_value_or_damaged(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("record") / "a.json"
    path.write_bytes(data)
    with pytest.raises(Damaged):
        FILE.read(str(path))


def test_a_pipe_or_a_directory_counts_as_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert FILE.load(str(tmp_path / "pipe")) == FILE.load(str(tmp_path)) == 0


def test_a_file_that_cannot_be_opened_now_is_not_the_empty_value(tmp_path: Path) -> None:
    path = str(tmp_path / "a.json")
    FILE.save(path, 7)
    with exhausted.no_descriptors(), pytest.raises(KernelRefused):
        FILE.load(path)


def test_a_place_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a directory should be")
    with pytest.raises(KernelRefused, match=r"run/a\.json") as caught:
        FILE.save(str(tmp_path / "run/a.json"), 7)
    names(caught.value.hint, "without it all is lost")
