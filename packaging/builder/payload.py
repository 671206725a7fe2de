# SPDX-License-Identifier: Apache-2.0
"""The code that is installed: our modules and the vendored ones, in a directory that is named after them.

Its name holds a hash of all that is in it. So an upgrade never puts other code in place of the code that a
running daemon was loaded from: what that daemon loads later is its own, or is not there any more. The demo's
modules go to the same directory by a package of their own.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import NamedTuple

from builder import source, vendoring

PLACE = Path("usr/lib/nodeagent")
OF_THE_DEMO = ("sim", "demo")


class Payload(NamedTuple):
    """``code`` names the directory; the trees are laid out as below ``/``; ``notices`` is a text."""

    code: str
    daemon: Path
    demo: Path
    notices: str


def lay_out(stage: Path) -> Payload:
    """Make both trees below ``stage``."""
    libraries = stage / "libraries"
    notices = vendoring.vendor(libraries)
    ours = stage / "ours"
    shutil.copytree(source.ROOT / "nodeagent", ours, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    code = f"{source.version()}-{_hash(libraries, ours)}"
    daemon, demo = stage / "daemon", stage / "demo"
    shutil.copytree(libraries, daemon / PLACE / code)
    for name in OF_THE_DEMO:
        _move(ours / name, demo / PLACE / code / "nodeagent" / name)
    _move(ours, daemon / PLACE / code / "nodeagent")
    return Payload(code, daemon, demo, notices)


def _move(old: Path, new: Path) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    old.rename(new)


def _hash(*trees: Path) -> str:
    """Eight digits that differ when the name or the content of any file does."""
    digest = hashlib.sha256()
    for tree in trees:
        for path in sorted(path for path in tree.rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(tree)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
