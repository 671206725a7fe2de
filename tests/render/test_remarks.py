# SPDX-License-Identifier: Apache-2.0
"""Remarks as text: problems before notes, and what to do once for what is alike."""

from __future__ import annotations

from nodeagent.model.problem import Problem, ProblemCode, note
from nodeagent.render import remarks


def test_without_remarks_there_is_nothing() -> None:
    assert remarks.text(()) == []


def test_problems_come_before_notes_and_a_hint_for_several_comes_once() -> None:
    wrong = Problem(ProblemCode.NO_VFIO, "", "not loaded", "load it", True)
    one, two = (note(ProblemCode.IDLE_RULE, what, "change it", what) for what in ("one", "two"))
    problems, notes = "\n".join(remarks.text((one, wrong, two)))[1:].split("\n\n")
    assert problems.splitlines() == [remarks.PROBLEMS, "  not loaded", "    to do: load it"]
    assert notes.splitlines() == [remarks.NOTES, "  one", "  two", "    to do: change it"]
