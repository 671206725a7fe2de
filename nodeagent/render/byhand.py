# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent bind`` and ``release`` print: what became of each group; what to do if it was refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nodeagent.model.change import BootFile, BootFiles, Outcome, Result

SHOWN = 4  # functions that are named before the rest is only counted


class OutcomeAnswer(NamedTuple):
    """What became of what was asked by hand, group by group; ``files`` are for the next boot.

    ``then`` is the command that makes a new initramfs of them, which nodeagent does not run.
    """

    results: tuple[Result, ...]
    files: tuple[BootFile, ...] = ()
    then: str = ""


def text(results: tuple[Result, ...], late: str) -> str:
    """A line for each group, a second one where something is to be done; ``late``: what that is then."""
    return "\n".join(line for result in results for line in _lines(result, late))


def files(changed: BootFiles, *, dry_run: bool) -> str:
    """The files, when they are only planned with all that is to be in them; and what is left to do."""
    lines: list[str] = []
    for file in changed.files:
        lines.append(f"{'would be ' if dry_run else ''}{file.fate}: {file.path}")
        lines += [f"    {line}" for line in file.text.splitlines()] if dry_run else []
    if changed.files:
        lines.append(f"  to do: {changed.then or _NO_TOOL}")
    return "\n".join(lines)


_NO_TOOL = "make a new initramfs, if this host has one, with these files and vfio-pci in it"


def _lines(result: Result, late: str) -> Iterator[str]:
    if result.became is Outcome.REFUSED:
        for what, hint in result.refusals.items():
            yield f"refused: {what}"
            yield f"  to do: {hint}"
    elif result.became is Outcome.NOTHING:
        yield f"nothing to do: {_few(result.functions)} ({result.what})"
    else:
        yield f"{result.became}: {result.what}"
        if result.became is Outcome.LATE:
            yield f"  to do: {late}"


def _few(functions: tuple[str, ...]) -> str:
    left = len(functions) - SHOWN
    return ", ".join(functions[:SHOWN]) + (f" and {left} more" if left > 0 else "")
