# SPDX-License-Identifier: Apache-2.0
"""The environment that ``make`` creates: a missing venv module is reported before anything exists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.facts import names

ROOT = Path(__file__).parents[1]
WITHOUT_VENV = f"""#!/bin/sh
case "$*" in *ensurepip*) exit 1 ;; esac
exec {sys.executable} "$@"
"""


def test_a_missing_venv_module_is_reported_and_leaves_no_environment(tmp_path: Path) -> None:
    python, environment = tmp_path / "python", tmp_path / "environment"
    python.write_text(WITHOUT_VENV)
    python.chmod(0o755)
    command = ["make", f"{environment}/bin/python", f"VENV={environment}", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    names(done.stderr, "venv", str(python), "apt install python3-venv")
    assert not environment.exists()
