# SPDX-License-Identifier: Apache-2.0
"""``nodeagent demo``: starts ``nodeagent.demo``, which is in a package of its own."""

from __future__ import annotations

import argparse

from nodeagent.base.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--keep", action="store_true", help="keep the simulated node running at the end")
    parser.add_argument(
        "--page", action="store_true", help="serve the status page, too, and keep the node running at the end"
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo. :raises ConfigError: if it is not installed."""
    try:
        from nodeagent.demo import story
    except ModuleNotFoundError as error:
        if error.name != "nodeagent.demo":
            raise
        raise ConfigError("the demo is not installed", "install the package nodeagent-demo") from error

    return story.run(keep=options.keep or options.page, page=options.page)
