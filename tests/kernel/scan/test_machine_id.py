# SPDX-License-Identifier: Apache-2.0
"""The machine id is one, or there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.mdevs import read_machine_id


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5f2a0c6e8b3d4f17a9c1e0d2b4f68a37\n", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37"),
        ("uninitialized\n", ""),
        ("", ""),
        ("5f2a0c6e\n", ""),
    ],
)
def test_only_thirty_two_digits_are_a_machine_id(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text(text)
    assert read_machine_id(Root(tmp_path)) == found


def test_without_the_file_there_is_no_machine_id(tmp_path: Path) -> None:
    assert read_machine_id(Root(tmp_path)) == ""
