# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands share, and the host root and settings that they select."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent import config
from nodeagent.base import hints
from nodeagent.base.errors import ConfigError
from nodeagent.cli import output
from nodeagent.kernel.root import Root

if TYPE_CHECKING:
    import argparse

SAVED = "a host saved by scan -o json (- is stdin)"
WIDE_FORMS = (output.TEXT, output.WIDE, output.NAME, *output.FORMS[1:])
_SETTINGS = "The flags of run are accepted, too; a running daemon uses its own settings."


def add_form(parser: argparse.ArgumentParser, forms: tuple[str, ...] = output.FORMS) -> None:
    """Add ``-o``."""
    words = f"{', '.join(forms[:-1])} or {forms[-1]}"
    parser.add_argument("-o", "--output", choices=forms, default=output.TEXT, metavar="FORM", help=words)


def add_common(parser: argparse.ArgumentParser, forms: tuple[str, ...] = output.FORMS) -> None:
    """Add ``-o`` and the flags of the settings."""
    add_form(parser, forms)
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the settings."""
    config.add_flags(parser)
    parser.description = f"{parser.description}\n{_SETTINGS}"


def is_saved(options: argparse.Namespace) -> bool:
    """True if the command uses a saved host."""
    return getattr(options, "host", None) is not None


def find_root(options: argparse.Namespace) -> Root:
    """Return the root of all host paths.

    :raises ConfigError: if no host is below it, and the command is not about a saved host.
    """
    prefix = str(options.root)
    try:
        wrong = _describe_no_root(prefix, saved=is_saved(options))
    except OSError as error:
        what = f'--root "{prefix}": {hints.strerror(error)}'
        raise ConfigError(what, hints.for_errno(error, "read")) from error
    if wrong:
        raise ConfigError(f'--root "{prefix}": {wrong}', "give the directory that contains sys/ and dev/")
    return Root(str(Path(prefix).absolute()))


def _describe_no_root(prefix: str, *, saved: bool) -> str:
    """Why the directory cannot be the root of a host; "" if it can. :raises OSError: if it is unreadable."""
    if not prefix:
        return "it is empty"
    if not _is_directory(prefix):
        return "no such directory"
    return "" if saved or _is_directory(f"{prefix}/sys") else "there is no sys/ in it"


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116  text in, answer out
    except (FileNotFoundError, NotADirectoryError):
        return False


def find_sources(options: argparse.Namespace) -> config.Sources:
    """The sources of the settings for this command: flags, environment and files."""
    return config.Sources(find_root(options).prefix, config.flags_from(options), os.environ)


def load_settings(options: argparse.Namespace) -> config.Settings:
    """Load the settings for this command. :raises ConfigError: if they are invalid."""
    return config.load(find_sources(options))
