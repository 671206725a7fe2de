# SPDX-License-Identifier: Apache-2.0
"""``nodeagent help``: prints the help of one command or of all."""

from __future__ import annotations

import argparse

from nodeagent.cli import output
from nodeagent.cli import parser as commands


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name of a command."""
    names = [command.name for command in commands.COMMANDS if command.name != "help"]
    parser.add_argument("command", metavar="COMMAND", nargs="?", choices=names, help="the name of a command")


def run(options: argparse.Namespace) -> int:
    """Print the help. :raises SystemExit: always."""
    words = [*filter(None, [options.command]), "--help"]
    commands.parser(words).parse_args(words)
    return output.FINE  # pragma: no cover  argparse ends the process
