# SPDX-License-Identifier: Apache-2.0
"""A systemd-journald of the test's own, in a mount namespace with an empty /run: not the machine's."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

JOURNALD = Path("/lib/systemd/systemd-journald")

_SCRIPT = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/log/journal /run/systemd/journal /run/lib/catalog /run/catalog
mount --bind /run/lib /var/lib/systemd
mount -t tmpfs tmpfs /var/log/journal 2>/dev/null || true
if [ -n "$CATALOG" ]; then
    cp "$CATALOG" /run/catalog
    mount --bind /run/catalog /usr/lib/systemd/catalog
    journalctl --update-catalog
fi
"$JOURNALD" & pid=$!
trap 'kill $pid' EXIT
while [ ! -S /run/systemd/journal/socket ]; do kill -0 $pid; sleep 0.02; done
"$@"
"""
_NAMESPACE = ("unshare", "--mount", "--propagation", "private")


@cache
def missing() -> str:
    """Why there can be none on this machine, or ""."""
    if not JOURNALD.exists():
        return "systemd-journald is not installed"
    tried = subprocess.run(
        [*_NAMESPACE, "mount", "-t", "tmpfs", "x", "/run"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "this machine lets no test mount anything"


def run(script: str, catalog: Path | None = None) -> str:
    """What a shell script prints that runs beside it; ``catalog`` is installed before."""
    environ = {"JOURNALD": str(JOURNALD), "CATALOG": str(catalog or "")}
    done = subprocess.run(
        [*_NAMESPACE, "sh", "-c", _SCRIPT, "sh", "sh", "-ec", script],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def records(text: str) -> list[dict[str, Any]]:
    """The records of ``journalctl -o json``."""
    return [json.loads(line) for line in text.splitlines()]
