# SPDX-License-Identifier: Apache-2.0
"""The source tree that is packaged: its root, its version, and the time that all files of the packages bear.

The time is ``SOURCE_DATE_EPOCH``, else that of the last commit, else that of the newest entry of the
changelog: never the present, so that two builds of one source are the same bytes.
"""

from __future__ import annotations

import os
import re
import subprocess
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"


def version() -> str:
    """What ``nodeagent --version`` says, read without importing it. :raises ValueError: if it says none."""
    text = (ROOT / "nodeagent/__init__.py").read_text()
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if found is None:
        raise ValueError("nodeagent/__init__.py has no __version__")
    return found[1]


def time() -> int:
    """Seconds since 1970 that all files of the packages bear."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    if committed := _of_commit("%ct"):
        return int(committed)
    import yaml  # here: the stage that builds the image does without

    newest = yaml.safe_load((PACKAGING / "changelog.yaml").read_text())[0]["date"]
    return int(datetime.fromisoformat(str(newest)).timestamp())


def revision() -> str:
    """The commit; "" where there is no history."""
    return _of_commit("%H")


def _of_commit(field: str) -> str:
    if not (ROOT / ".git").exists():
        return ""
    command = ["git", "-C", str(ROOT), "log", "-1", f"--format={field}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
