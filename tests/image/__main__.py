# SPDX-License-Identifier: Apache-2.0
"""``make image-test``: looks whether the machine can do it, fetches the tools, runs the tests.

Never passes silently: what is missing ends in a sentence that says what to install, and exit code 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers
from tests.image import tools
from tests.image.tools import Missing

_HERE = Path(__file__).parent
_PROGRAMS = ("buildah", "podman", "runc", "mmdebstrap", "unshare", "setpriv")
_PACKAGES = "buildah, podman, runc, mmdebstrap, debian-archive-keyring and util-linux"


def main(arguments: list[str]) -> int:
    """Run the tier with further arguments for pytest; its exit code, or 1 if it cannot be run."""
    try:
        _prepare()
    except Missing as error:
        print(f"make image-test: {error}", file=sys.stderr)
        return 1
    return int(pytest.main(["-c", str(_HERE / "pytest.ini"), *arguments, *tiers.chosen(arguments, _HERE)]))


def _prepare() -> None:
    if sys.platform != "linux" or os.geteuid() != 0 or os.uname().machine != "x86_64":
        raise Missing("run it as root on Linux on x86-64: it runs containers")
    if _absent() and shutil.which("apt-get"):
        subprocess.run(["sh", str(_HERE / "install.sh")], check=False)
    if absent := _absent():
        raise Missing(f"not on this machine: {', '.join(absent)}. Install {_PACKAGES} (Debian's names)")
    tools.directory()


def _absent() -> list[str]:
    return [program for program in _PROGRAMS if shutil.which(program) is None]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
