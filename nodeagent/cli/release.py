# SPDX-License-Identifier: Apache-2.0
"""``nodeagent release``: restores the drivers of functions that ``bind`` has bound, now or at boot."""

from __future__ import annotations

import argparse

from nodeagent.cli import bind
from nodeagent.model.change import BindAction
from nodeagent.model.ids import VFIO_PCI


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the names, and ``--dry-run``."""
    bind.add_names(parser)


def run(options: argparse.Namespace) -> int:
    """Remove the functions from the files for the next boot, then restore their drivers."""
    request = bind.parse_request(options, BindAction.RELEASE, VFIO_PCI)
    return bind.carry_out(options, *bind.remove_from_boot(options, request))
