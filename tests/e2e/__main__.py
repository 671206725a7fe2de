# SPDX-License-Identifier: Apache-2.0
"""``make e2e``: checks the requirements, builds the missing programs and runs the tests.

Tests that are marked ``long`` are left out; ``--long`` runs these alone. All other arguments are pytest's; a
``-m`` among them replaces this choice. A missing requirement is printed with the package to install, and the
exit code is 1.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import tiers
from tests.e2e import building, image
from tests.e2e.building import HERE, Missing

LONG = "--long"
_PROGRAMS = (
    *("containerd", "ctr", "runc", "openssl", "unshare", "nsenter", "setpriv", "mount", "nice"),
    *("buildah", "podman", "mmdebstrap"),
)
_PACKAGES = "containerd, runc, busybox-static, openssl, util-linux, buildah, podman and mmdebstrap"


def main(arguments: list[str]) -> int:
    """Run the tests and return the exit code of pytest, or 1 if a requirement is missing."""
    try:
        _prepare()
    except (Missing, RuntimeError) as error:
        print(f"make e2e: {error}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all is cleaned up then, too
    options = ["-c", str(HERE / "pytest.ini"), *_select_tests(arguments)]
    return int(pytest.main([*options, *tiers.chosen(arguments, HERE)]))


def _select_tests(arguments: Sequence[str]) -> list[str]:
    """Return the arguments for pytest, which select the long tests or all others."""
    others = [argument for argument in arguments if argument != LONG]
    return ["-m", "long" if LONG in arguments else "not long", *others]


def _prepare() -> None:
    building.go()
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Missing("run it as root on Linux: it makes mounts, device nodes and containers")
    if _absent() and shutil.which("apt-get"):
        subprocess.run(["sh", str(HERE / "install.sh")], check=False)
    if absent := _absent():
        raise Missing(f"not on this machine: {', '.join(absent)}. Install {_PACKAGES}")
    building.kubernetes(building.chosen(os.environ))
    building.containerd()
    building.launcher()


def _absent() -> list[str]:
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    return absent if Path(image.BUSYBOX).exists() else [*absent, str(image.BUSYBOX)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
