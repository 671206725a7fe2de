# SPDX-License-Identifier: Apache-2.0
"""``nodeagent help``: prints the help of one command or of all."""

from __future__ import annotations

import argparse

from nodeagent.cli import output
from nodeagent.cli import parser as commands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name of a command."""
    names = [verb.name for verb in commands.VERBS if verb.name != "help"]
    parser.add_argument("verb", metavar="VERB", nargs="?", choices=names, help="one of the verbs")


def run(options: argparse.Namespace) -> int:
    """Print the help. :raises SystemExit: always."""
    words = [*filter(None, [options.verb]), "--help"]
    commands.parser(words).parse_args(words)
    return output.FINE  # pragma: no cover  argparse ends the process
