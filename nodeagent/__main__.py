# SPDX-License-Identifier: Apache-2.0
"""The way in: ``nodeagent`` and ``python -m nodeagent``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from nodeagent.cli.main import main as run  # imported here so that --version stays quick

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
