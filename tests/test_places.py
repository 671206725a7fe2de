# SPDX-License-Identifier: Apache-2.0
"""Files are in memory where that has room, and elsewhere if not; afterwards they are nowhere."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests import places


def test_what_fits_is_in_memory_until_it_is_not_needed(tmp_path: Path) -> None:
    with places.in_memory("x-", memory=str(tmp_path)) as directory:
        assert directory.parent == tmp_path
        (directory / "file").touch()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("memory", "room"), [("missing", 0), (".", 1 << 60)])
def test_where_memory_is_short_or_is_not_there_files_are_where_they_always_are(
    tmp_path: Path, memory: str, room: int
) -> None:
    with places.in_memory("x-", room, str(tmp_path / memory)) as directory:
        assert directory.parent == Path(tempfile.gettempdir())
    assert not directory.exists()
