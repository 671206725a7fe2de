# SPDX-License-Identifier: Apache-2.0
"""The entry point of ``nodeagent`` and ``python -m nodeagent``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_what_is_closed()
    from nodeagent.cli.main import main as run  # imported here so that --version is fast

    sys.exit(run(sys.argv[1:]))


def _open_what_is_closed() -> None:
    """Open /dev/null for closed standard streams: otherwise sockets would get their descriptor numbers.

    ``sys.stdout`` stays None if it was closed, so that a command which cannot print its result fails.
    """
    while (spare := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    nobody = os.fdopen(spare, "r+")
    sys.stdin, sys.stderr = sys.stdin or nobody, sys.stderr or nobody


if __name__ == "__main__":
    main()
