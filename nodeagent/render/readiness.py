# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent check`` prints in 80 columns: sections of lines, each with its evidence and what to do."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from nodeagent.model.readiness import ReadinessLine, Verdict
from nodeagent.render.answers import ReadinessAnswer

WIDTH = 80
_WORDS = {Verdict.OK: "ok", Verdict.WRONG: "WRONG", Verdict.NOTE: "note", Verdict.UNSEEN: "not seen"}
_MARK = max(map(len, _WORDS.values()))
_TO_DO = "    to do: "


def text(lines: Sequence[ReadinessLine]) -> str:
    """All sections, and what it comes to."""
    width = max(len(line.check) for line in lines)
    told = []
    for section, together in groupby(lines, lambda line: line.section):
        told += [section, *_section(list(together), width), ""]
    return "\n".join([*told, _sum(lines)])


def _section(lines: Sequence[ReadinessLine], width: int) -> Iterator[str]:
    """Its lines; what to do for several comes with the last."""
    for to_do, alike in groupby(lines, lambda line: line.to_do):
        for line in alike:
            head = f"  {_WORDS[line.verdict]:{_MARK}}  {line.check:{width}}  "
            yield from _wrapped(head, line.seen)
        if to_do:
            yield from _wrapped(_TO_DO, to_do)


def _wrapped(head: str, words: str) -> list[str]:
    """The words after the head, and below each other; what is longer than a line is broken."""
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
    )


def _sum(lines: Sequence[ReadinessLine]) -> str:
    count = Counter(line.verdict for line in lines)
    wrong = f"{count[Verdict.WRONG]} wrong" if count[Verdict.WRONG] else "nothing is wrong"
    notes = "1 note" if count[Verdict.NOTE] == 1 else f"{count[Verdict.NOTE]} notes"
    return f"{wrong}; {notes}, {count[Verdict.UNSEEN]} not seen"


def answer(lines: tuple[ReadinessLine, ...]) -> ReadinessAnswer:
    """The same for programs."""
    return ReadinessAnswer(all(line.verdict is not Verdict.WRONG for line in lines), lines)
