# SPDX-License-Identifier: Apache-2.0
"""Problems and notes as text: problems before notes, and what to do once for what is alike."""

from __future__ import annotations

from nodeagent.cli import output
from nodeagent.model.problem import Problem, ProblemCode, note


def test_without_remarks_there_is_nothing() -> None:
    assert output.problem_sections(()) == []


def test_problems_come_before_notes_and_a_hint_for_several_comes_once() -> None:
    wrong = Problem(ProblemCode.NO_VFIO, "", "not loaded", "load it", True)
    one, two = (note(ProblemCode.IDLE_RULE, what, "change it", what) for what in ("one", "two"))
    problems, notes = "\n".join(output.problem_sections((one, wrong, two)))[1:].split("\n\n")
    assert problems.splitlines() == [output.PROBLEMS, "  not loaded", "    to do: load it"]
    assert notes.splitlines() == [output.NOTES, "  one", "  two", "    to do: change it"]
