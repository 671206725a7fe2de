# SPDX-License-Identifier: Apache-2.0
"""Root trees of Debian releases, made once and kept in ``$NODEAGENT_CACHE/systems``; nobody writes to them.

The mirror is the one from which apt has this machine's release. Remove a tree to renew it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from builder import cache, debian

SUITES = ("bookworm", "trixie")
_PACKAGES = "systemd,systemd-sysv,dbus,kmod,udev,libnss-systemd,procps,python3,rpm"


class Missing(Exception):
    """Raised when something is not on this machine; the text says what to do."""


def root(suite: str) -> Path:
    """The tree of a release. :raises Missing: if it cannot be made."""
    return cache.made(cache.place("systems") / suite, lambda making: _make(suite, making))


def _make(suite: str, tree: Path) -> None:
    print(f"making a system of {suite} ...", flush=True)
    try:
        debian.make(suite, tree, "--variant=minbase", f"--include={_PACKAGES}")
    except debian.NoTree as error:
        shutil.rmtree(tree)
        raise Missing(str(error)) from error
