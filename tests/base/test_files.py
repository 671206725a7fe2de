# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced: whole, for all to read, and as before if it cannot be done."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.base import files
from nodeagent.base.errors import KernelRefused
from tests.facts import names


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_all_may_read_what_is_written_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "made" / "here" / "a.json"
    files.replace(path, "é")
    assert path.read_text(encoding="utf-8") == "é"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ["a.json"]


def test_who_reads_the_old_file_reads_it_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with path.open() as reading:
        files.replace(str(path), "new")
        assert reading.read() == "old"
    assert path.read_text() == "new"


def test_what_was_left_halfway_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.new").write_text("a long text that was never finished")
    files.replace(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "new"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    (tmp_path / "a.new").mkdir()
    with pytest.raises(IsADirectoryError):
        files.replace(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "old"


def test_of_what_cannot_be_written_nothing_stays_behind(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(IsADirectoryError):
        files.replace(tmp_path / "a.json", "new")
    assert os.listdir(tmp_path) == ["a.json"]


def test_what_cannot_be_written_is_told_with_its_path_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelRefused, match=r"^the list .*file/a\.json ") as caught:
        files.put(tmp_path / "file/a.json", "", "without it all is lost", what="the list ")
    names(caught.value.hint, "directory", "without it all is lost")


def test_a_regular_file_is_read_to_a_limit_and_nothing_else_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    assert files.read_regular(str(tmp_path / "file")) == b"12345"
    assert files.read_regular(str(tmp_path / "file"), 3) == b"1234"
    with pytest.raises(files.NotRegular):
        files.read_regular(str(tmp_path / "pipe"))
    with pytest.raises(IsADirectoryError):
        files.read_regular(str(tmp_path))
    assert os.listdir("/proc/self/fd") == before
