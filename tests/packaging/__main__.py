# SPDX-License-Identifier: Apache-2.0
"""``make packaging-test``: looks whether the machine can do it, makes the systems, runs the tests.

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
from tests.packaging import systems
from tests.packaging.systems import Missing

_HERE = Path(__file__).parent
_PROGRAMS = (
    *("mmdebstrap", "systemd-nspawn", "systemd-analyze", "nsenter", "rpm", "rpmlint", "lintian", "dnf"),
    *("createrepo_c", "bash", "zsh", "fish", "man", "gpg", "ar"),
)
_PACKAGES = (
    "mmdebstrap, systemd-container, debian-archive-keyring, rpm, rpmlint, lintian, dnf, createrepo-c, "
    "bash-completion, zsh, fish, man-db, gnupg, binutils and util-linux"
)


def main(arguments: list[str]) -> int:
    """Run the tier with further arguments for pytest; its exit code, or 1 if it cannot be run."""
    try:
        _prepare()
    except Missing as error:
        print(f"make packaging-test: {error}", file=sys.stderr)
        return 1
    return int(pytest.main(["-c", str(_HERE / "pytest.ini"), *arguments, *tiers.chosen(arguments, _HERE)]))


def _prepare() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Missing("run it as root on Linux: it boots containers")
    if _absent() and shutil.which("apt-get"):
        subprocess.run(["sh", str(_HERE / "install.sh")], check=False)
    if absent := _absent():
        raise Missing(f"not on this machine: {', '.join(absent)}. Install {_PACKAGES} (Debian's names)")
    for suite in systems.SUITES:
        systems.root(suite)


def _absent() -> list[str]:
    return [program for program in _PROGRAMS if shutil.which(program) is None]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
