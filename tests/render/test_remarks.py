# SPDX-License-Identifier: Apache-2.0
"""Remarks as text: problems before notes, and what to do once for what is alike."""

from __future__ import annotations

from nodeagent.model.remark import Remark, RemarkCode, note
from nodeagent.render import remarks


def test_without_remarks_there_is_nothing() -> None:
    assert remarks.text(()) == []


def test_problems_come_before_notes_and_a_hint_for_several_comes_once() -> None:
    wrong = Remark(RemarkCode.NO_VFIO, "", "not loaded", "load it", True)
    one, two = (note(RemarkCode.IDLE_RULE, what, "change it", what) for what in ("one", "two"))
    assert remarks.text((one, wrong, two)) == [
        "",
        "to look at:",
        "  not loaded",
        "    to do: load it",
        "",
        "notes:",
        "  one",
        "  two",
        "    to do: change it",
    ]
