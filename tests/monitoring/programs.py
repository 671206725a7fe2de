# SPDX-License-Identifier: Apache-2.0
"""Where the programs of this tier are: on the machine, or unpacked from Debian's package into the cache.

Prometheus is only unpacked, since its package would start a service.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PROGRAMS = ("promtool", "prometheus", "chromium")
PACKAGES = "prometheus and chromium"


def cache() -> Path:
    """The directory in which what was unpacked is kept."""
    return Path(os.environ.get("NODEAGENT_CACHE") or Path.home() / ".cache/nodeagent") / "monitoring"


def found(program: str) -> str | None:
    """The path of a program; None if it is nowhere."""
    return shutil.which(program) or shutil.which(program, path=str(cache() / "usr/bin"))


def needed(program: str) -> str:
    """The path of a program. :raises FileNotFoundError: if it is nowhere."""
    path = found(program)
    if path is None:
        raise FileNotFoundError(f"{program} is not on this machine: install {PACKAGES} (Debian's names)")
    return path
