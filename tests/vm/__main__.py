# SPDX-License-Identifier: Apache-2.0
"""``make vm``: looks whether the machine can do it, fetches the kernels, runs the tests.

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
from tests.vm import kernels, machine, samples
from tests.vm.kernels import Missing

_HERE = Path(__file__).parent
_PROGRAMS = (
    *("qemu-system-x86_64", "cpio", "gzip", "modprobe", "depmod", "zstd", "setpriv", "unshare"),
    *("timeout", "nice", "apt-get", "dpkg-deb", "gcc", "make", "xz", "mke2fs", "mmdebstrap"),
)
_PACKAGES = (
    "qemu-system-x86, busybox-static, cpio, kmod, zstd, util-linux, gcc, make, xz-utils, e2fsprogs "
    "and mmdebstrap"
)


def main(arguments: list[str]) -> int:
    """Run the tier with further arguments for pytest; its exit code, or 1 if it cannot be run."""
    try:
        _prepare()
    except Missing as error:
        print(f"make vm: {error}", file=sys.stderr)
        return 1
    return int(pytest.main(["-c", str(_HERE / "pytest.ini"), *arguments, *tiers.chosen(arguments, _HERE)]))


def _prepare() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Missing("run it as root on Linux: the guest shares this machine's files, read-only")
    if _absent() and shutil.which("apt-get"):
        subprocess.run(["sh", str(_HERE / "install.sh")], check=False)
    if absent := _absent():
        raise Missing(f"not on this machine: {', '.join(absent)}. Install {_PACKAGES} (Debian's names)")
    for kind in kernels.KINDS:
        samples.build(kind)


def _absent() -> list[str]:
    absent = [program for program in _PROGRAMS if shutil.which(program) is None]
    return absent if machine.BUSYBOX.exists() else [*absent, str(machine.BUSYBOX)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
