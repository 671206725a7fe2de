# SPDX-License-Identifier: Apache-2.0
"""How a report looks: sections, verdicts below each other, advice once for all that it is for."""

from __future__ import annotations

from nodeagent.check.findings import ReadinessLine, Verdict
from nodeagent.cli import check


def line(
    check: str, verdict: Verdict, seen: str = "seen", to_do: str = "", section: str = "a"
) -> ReadinessLine:
    return ReadinessLine(section, check, verdict, seen, to_do)


def test_a_report_has_a_line_for_each_thing_and_ends_with_what_it_comes_to() -> None:
    lines = (
        line("IOMMU", Verdict.OK),
        line("one", Verdict.WRONG, to_do="mend it"),
        line("two", Verdict.WRONG, to_do="mend it"),
        line("three", Verdict.NOTE, "x " * 40, section="b"),
        line("four", Verdict.UNSEEN, "/a/path" * 12, section="b"),
    )
    *told, end = check.text(lines).splitlines()
    assert told == [
        "a",
        "  ok        IOMMU  seen",
        "  WRONG     one    seen",
        "  WRONG     two    seen",
        "    to do: mend it",
        "",
        "b",
        f"  note      three  {'x ' * 31}".rstrip(),
        f"{' ' * 19}{'x ' * 9}".rstrip(),
        f"  not seen  four   {('/a/path' * 9)[:61]}",
        f"{' ' * 19}{('/a/path' * 12)[61:]}",
        "",
    ]
    assert [word for word in end.split() if word.isdigit()] == ["2", "1", "1"]


def test_where_nothing_is_wrong_that_is_said() -> None:
    report = (line("IOMMU", Verdict.OK),)
    end = check.text(report).splitlines()[-1]
    assert [word for word in end.split() if word.isdigit()] == ["0", "0"]
    assert check.summarize(report).ok
    assert not check.summarize((line("x", Verdict.WRONG),)).ok
