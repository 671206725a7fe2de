# SPDX-License-Identifier: Apache-2.0
"""The way in: ``nodeagent`` and ``python -m nodeagent``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_what_is_closed()
    from nodeagent.cli.main import main as run  # imported here so that --version stays quick

    sys.exit(run(sys.argv[1:]))


def _open_what_is_closed() -> None:
    """Let standard streams that were closed lead to nobody: sockets would get their numbers.

    An answer that nobody can get is a mistake all the same: ``sys.stdout`` stays None.
    """
    while (spare := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    nobody = os.fdopen(spare, "r+")
    sys.stdin, sys.stderr = sys.stdin or nobody, sys.stderr or nobody


if __name__ == "__main__":
    main()
