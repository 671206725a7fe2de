# SPDX-License-Identifier: Apache-2.0
"""Command-line flags from the table of settings: ``timing.settle`` becomes ``--timing-settle``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.config import table

if TYPE_CHECKING:
    import argparse


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting that can be one; values stay text until ``load``."""
    group = parser.add_argument_group("settings", "they win over the environment and the files")
    for setting in table.SETTINGS:
        if setting.flag is not None and setting.supported:
            group.add_argument(
                setting.flag,
                dest=setting.key,
                metavar=setting.name.upper(),
                help=f"{setting.help} ({setting.shape.words})".replace("%", "%%"),
            )


def flags_from(namespace: argparse.Namespace) -> dict[str, str]:
    """The settings given as flags, as texts by key; what was not given is left out."""
    given = vars(namespace)
    return {
        setting.key: given[setting.key] for setting in table.SETTINGS if given.get(setting.key) is not None
    }
