# SPDX-License-Identifier: Apache-2.0
"""``nodeagent check``: runs the checks of ``nodeagent/check`` on this node or a saved host, and prints a
report.

The report is 80 columns wide. Each line of its sections has the evidence, and how to fix the problem.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import anyio

from nodeagent.check import report
from nodeagent.check.findings import Node, ReadinessLine, Verdict
from nodeagent.cli import args, daemon_client, output
from nodeagent.kernel.root import Root

if TYPE_CHECKING:
    from nodeagent.agent.reporting.basis import Basis

WIDTH = 80
_WORDS = {Verdict.OK: "ok", Verdict.WRONG: "WRONG", Verdict.NOTE: "note", Verdict.UNSEEN: "not seen"}
_MARK = max(map(len, _WORDS.values()))
_TO_DO = "    to do: "


class Readiness(NamedTuple):
    """Whether this host can pass devices to VMs: one line for each check.

    ``ok`` is false if a line has the verdict WRONG. A line with the verdict "not seen" does not make ``ok``
    false.
    """

    ok: bool
    lines: tuple[ReadinessLine, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--host``."""
    parser.add_argument("--host", metavar="FILE", help=f"check {args.SAVED}")
    args.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Report whether the host is ready. :raises ConfigError: if the file is no saved host."""
    basis, first_line = daemon_client.read_basis(options)
    lines = anyio.run(report.run, describe_node(options, basis))
    found = summarize(lines)
    if options.output == output.TEXT:
        output.print_answer(text(lines), first_line, *basis.warnings)  # the text is folded already
    else:
        output.emit_document(options, "Readiness", found, first_line, *basis.warnings)
    return output.FINE if found.ok else output.WRONG


def summarize(lines: tuple[ReadinessLine, ...]) -> Readiness:
    """Return the lines of the report with the overall verdict."""
    return Readiness(all(line.verdict is not Verdict.WRONG for line in lines), lines)


def describe_node(options: argparse.Namespace, basis: Basis) -> Node:
    """Return the node to check, with the settings of the Basis."""
    root = args.find_root(options)
    values = {value.key: value.value for value in basis.values}
    saved = args.is_saved(options)
    return Node(
        Root(os.devnull) if saved else root,  # this machine's files say nothing about a saved host
        basis.snapshot,
        str(values["kubelet.devicePluginDir"]),
        str(values["kubelet.podResources"]),
        root.host_path(daemon_client.socket_path(options)),
        options.timeouts,
        saved,
    )


def text(lines: Sequence[ReadinessLine]) -> str:
    """The text of all sections, and the number of lines of each verdict."""
    width = max(len(line.check) for line in lines)
    sections = []
    for section, together in groupby(lines, lambda line: line.section):
        sections += [section, *_section(list(together), width), ""]
    return "\n".join([*sections, _sum(lines)])


def _section(lines: Sequence[ReadinessLine], width: int) -> Iterator[str]:
    """The lines of one section; a hint for several lines follows the last of them."""
    for to_do, alike in groupby(lines, lambda line: line.hint):
        for line in alike:
            head = f"  {_WORDS[line.verdict]:{_MARK}}  {line.check:{width}}  "
            yield from _wrap(head, line.message)
        if to_do:
            yield from _wrap(_TO_DO, to_do)


def _wrap(head: str, words: str) -> list[str]:
    """The text after the first column, wrapped and aligned; a word that is longer than a line is split."""
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
