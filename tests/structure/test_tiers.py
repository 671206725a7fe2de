# SPDX-License-Identifier: Apache-2.0
"""Each real tier is found with what the Makefile sets, and with nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_RECIPE = re.compile(
    r"^\t(?:PYTHONPATH=(?P<path>\S+) )?\$\(BIN\)/python -m tests\.(?P<tier>\w+) ", re.MULTILINE
)
_TIERS = {found["tier"]: found["path"] for found in _RECIPE.finditer((_ROOT / "Makefile").read_text())}

# they run by themselves, not in pytest
_PROGRAMS = {"bench", "fuzz", "lots", "mishaps", "nights", "soak"}


def test_the_makefile_has_the_real_tiers() -> None:
    assert {"e2e", "vm", "packaging", "image", "monitoring"} <= _TIERS.keys()


@pytest.mark.parametrize("tier", sorted(_TIERS.keys() - _PROGRAMS))
def test_a_tier_can_be_collected_with_what_the_makefile_sets(tier: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if _TIERS[tier]:
        environment["PYTHONPATH"] = _TIERS[tier]
    code = f"import sys, pytest, tests.{tier}.__main__; sys.exit(pytest.main(sys.argv[1:]))"
    wanted = ["-c", f"tests/{tier}/pytest.ini", "--collect-only", "-q", f"tests/{tier}"]
    command = [sys.executable, "-c", code, *wanted]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
