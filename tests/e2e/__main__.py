# SPDX-License-Identifier: Apache-2.0
"""``make e2e``: looks whether the machine can do it, builds what is missing, runs the tests.

Never passes silently: what is missing ends in a sentence that says what to install, and exit code 1.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers
from tests.e2e import building, image
from tests.e2e.building import HERE, Missing

_PROGRAMS = (
    *("containerd", "ctr", "runc", "openssl", "unshare", "nsenter", "setpriv", "mount", "nice"),
    *("buildah", "podman", "mmdebstrap"),
)
_PACKAGES = "containerd, runc, busybox-static, openssl, util-linux, buildah, podman and mmdebstrap"


def main(arguments: list[str]) -> int:
    """Run the tier with further arguments for pytest; its exit code, or 1 if it cannot be run."""
    try:
        _prepare()
    except (Missing, RuntimeError) as error:
        print(f"make e2e: {error}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all is cleaned up then, too
    return int(pytest.main(["-c", str(HERE / "pytest.ini"), *arguments, *tiers.chosen(arguments, HERE)]))


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
