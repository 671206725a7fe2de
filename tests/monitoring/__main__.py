# SPDX-License-Identifier: Apache-2.0
"""``make monitoring-test``: gets promtool, Prometheus and Chromium, and runs the tests.

Never passes silently: what is missing ends in a sentence that says what to install, and exit code 1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers
from tests.monitoring import programs

_HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """Run the tier with further arguments for pytest; its exit code, or 1 if it cannot be run."""
    if _absent() and shutil.which("apt-get"):
        subprocess.run(["sh", str(_HERE / "install.sh")], check=False)
    if absent := _absent():
        missing = f"not on this machine: {', '.join(absent)}"
        print(
            f"make monitoring-test: {missing}. Install {programs.PACKAGES} (Debian's names)", file=sys.stderr
        )
        return 1
    return int(pytest.main(["-c", str(_HERE / "pytest.ini"), *arguments, *tiers.chosen(arguments, _HERE)]))


def _absent() -> list[str]:
    return [program for program in programs.PROGRAMS if programs.found(program) is None]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
