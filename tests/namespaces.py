# SPDX-License-Identifier: Apache-2.0
"""A user namespace of its own, where a test may set limits of the kernel without harm to the machine."""

from __future__ import annotations

import subprocess

ALONE = ("unshare", "--user", "--map-root-user")


def namespaces() -> bool:
    """True if this machine gives them out."""
    return subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0
