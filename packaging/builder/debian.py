# SPDX-License-Identifier: Apache-2.0
"""Trees of Debian's packages, from the mirror that this machine has its own release from."""

from __future__ import annotations

import subprocess
from pathlib import Path


class NoTree(Exception):
    """Raised when a tree cannot be made; the text says why."""


def make(suite: str, target: Path, *options: str) -> None:
    """Make the tree or tar file of a release with mmdebstrap. :raises NoTree: if it cannot be made."""
    command = ["mmdebstrap", "--quiet", "--aptopt=APT::Sandbox::User root", *options]
    done = subprocess.run(
        [*command, suite, str(target), mirror()], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NoTree(f"mmdebstrap cannot make {suite}:\n{done.stderr.strip()}")


def mirror() -> str:
    """The mirror. :raises NoTree: if apt knows none."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    found = subprocess.run(targets, capture_output=True, text=True, check=False).stdout.split()
    plain = [uri for uri in found if "security" not in uri]
    if not plain:
        raise NoTree("apt knows no mirror of Debian: nothing to make systems from")
    return plain[0]
