# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells about itself, and where: for those who serve and for those who ask."""

from __future__ import annotations


def request_socket(status_path: str) -> str:
    """The socket for what is asked for by hand, beside that of the Status as well."""
    return f"{status_path}.requests"


def snapshot_socket(status_path: str) -> str:
    """The socket for what is in force: beside that of the Status, and so under the same protection."""
    return f"{status_path}.snapshot"
