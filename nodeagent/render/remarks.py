# SPDX-License-Identifier: Apache-2.0
"""How remarks look in ``status`` and ``scan``: problems and notes, a section each, with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from nodeagent.model.problem import Problem

PROBLEMS = "to look at:"
NOTES = "notes:"


def text(remarks: Sequence[Problem]) -> list[str]:
    """Both sections, as far as there is something in them."""
    wrong = [remark for remark in remarks if remark.wrong]
    return section(PROBLEMS, wrong) + section(NOTES, [remark for remark in remarks if not remark.wrong])


def section(heading: str, remarks: Sequence[Problem]) -> list[str]:
    """The heading and what is below it; [] without remarks. A hint for several comes with the last."""
    lines = ["", heading] if remarks else []
    for hint, alike in groupby(remarks, lambda remark: remark.hint):
        lines += [f"  {remark.what}" for remark in alike]
        lines += [f"    to do: {hint}"] if hint else []
    return lines
