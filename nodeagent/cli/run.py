# SPDX-License-Identifier: Apache-2.0
"""``nodeagent run``: reads the settings, starts the log, and runs ``app``."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from nodeagent import config
from nodeagent.base.errors import ConfigError
from nodeagent.cli import args, output
from nodeagent.config import last_good

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--strict`` and the flags of the settings."""
    parser.add_argument(
        "--strict", action="store_true", help="exit if a file is invalid: no last valid settings"
    )
    config.add_flags(parser, "they override environment and files")


def run(options: argparse.Namespace) -> int:
    """Run the daemon until a signal ends it."""
    root = args.find_root(options)
    if root.is_host and os.geteuid() != 0:
        raise ConfigError(
            "nodeagent run must be root: it serves sockets that only root may use",
            "start it with sudo, or try it out with: nodeagent demo",
        )
    settings, refused = last_good.at_start(args.find_sources(options), strict=options.strict)
    from nodeagent.base import log, log_handlers

    gc.collect()
    gc.disable()  # until the daemon is ready: nearly all objects that its start creates are kept
    from nodeagent import app

    lines = log_handlers.LogQueue()
    repeated: float = options.timeouts.repeated_log_lines

    def set_log(wanted: config.Log) -> None:
        log_handlers.setup(wanted.format, wanted.level, os.environ, sys.stderr, repeated, lines=lines)

    set_log(settings.log)
    for warning in settings.warnings:
        log.event(log.CONFIG_WARNING, text=warning)
    if refused is not None:
        log.event(log.CONFIG_LAST_GOOD, error=refused.what, hint=f"{refused.hint}{config.more(refused)}")
    try:
        app.run(settings, args.find_sources(options), options.timeouts, set_log, refused)
    finally:
        lines.finish(options.timeouts.last_log_lines)
    app.leave(output.FINE)
    return output.FINE
