# SPDX-License-Identifier: Apache-2.0
"""``nodeagent config``: shows the settings in force, checks or translates a file, prints the JSON schema."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nodeagent import config
from nodeagent.base.terminal import table
from nodeagent.cli import args, daemon_client, output

HEAD = ("SETTING", "FROM", "VALUE")


class SettingAnswer(NamedTuple):
    """The value of a setting in force, and its source."""

    value: Any
    source: str


class Settings(NamedTuple):
    """The settings in force by key, and the warnings about them."""

    settings: Mapping[str, SettingAnswer]
    warnings: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--check``, ``--from``, ``--schema`` and the settings."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--check",
        metavar="FILE",
        nargs="?",
        const="",
        help="check this file (- is stdin), or all files that the daemon reads",
    )
    choice.add_argument(
        "--from",
        dest="translated",
        metavar="FILE",
        help="translate a KubeVirt CR, a HyperConverged, or a file of another device plugin into rules",
    )
    choice.add_argument("--schema", action="store_true", help="print the JSON schema of the file")
    args.add_form(parser)
    config.add_flags(parser, "they override environment and files, but not the settings of a running daemon")


def run(options: argparse.Namespace) -> int:
    """Print the settings in force, or carry out ``--check``, ``--from`` or ``--schema`` instead."""
    if options.schema:
        return output.print_answer(output.format_document("json", config.schema()))
    if options.check is not None:
        return _check(options)
    if options.translated:
        from nodeagent.cli import convert  # here: it reads files of other tools

        return convert.run(options)
    basis, first_line = daemon_client.find_basis(options)
    effective = basis or args.load_settings(options)
    wrong = _describe_refusal(options) if basis else ""
    found = as_document(effective.values, effective.warnings)
    messages = (first_line, wrong, *effective.warnings)
    output.emit(options, "Settings", found, lambda: text(effective.values), *messages)
    return output.WRONG if wrong else output.FINE


def _describe_refusal(options: argparse.Namespace) -> str:
    """A line if the daemon has refused the newest configuration; otherwise ""."""
    from nodeagent.policy.diagnose import not_in_force  # here: only a daemon refuses a configuration

    try:
        message = daemon_client.find_status(options)["configuration"]["problem"]["message"]
    except (KeyError, TypeError):
        return ""
    return f"{not_in_force(message)}; the settings below are older"


def _check(options: argparse.Namespace) -> int:
    effective = config.check_file(options.check) if options.check else args.load_settings(options)
    fine = f"{options.check or 'the settings of this node'}: fine"
    if options.output == output.TEXT:
        return output.print_answer(fine, *effective.warnings)  # a path is not folded
    found = as_document(effective.values, effective.warnings)
    return output.emit_document(options, "Settings", found, *effective.warnings)


def as_document(values: Iterable[config.Value], warnings: Iterable[str]) -> Settings:
    """The settings and their warnings as a record for ``-o``."""
    return Settings({item.key: SettingAnswer(item.value, item.source) for item in values}, tuple(warnings))


def text(values: Iterable[config.Value]) -> str:
    """A table with one setting per line; lists, maps and texts with blanks are shown as JSON."""
    return table(HEAD, ((item.key, item.source, _word(item.value)) for item in values))


def _word(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable() and " " not in value:
        return value
    return json.dumps(value, ensure_ascii=False)
