# SPDX-License-Identifier: Apache-2.0
"""Writes to ``create`` of an mdev type that fail with a real errno.

The file leads to one of /proc or /dev that always does.
"""

from __future__ import annotations

import errno

from nodeagent.sim import files
from nodeagent.sim.functions import BUS
from nodeagent.sim.host import SimulatedHost

FAILING = {
    errno.ENOSPC: "/dev/full",
    errno.EIO: "/proc/self/mem",  # its first page is never mapped
    errno.EINVAL: "/proc/self/oom_score_adj",
}


def create_file(host: SimulatedHost, parent: str, type_id: str) -> str:
    """The path in this process of the file ``create``."""
    real = host.tree.real(f"{BUS}/{parent}")
    return host.path(f"{real}/mdev_supported_types/{type_id}/create")


def fail(host: SimulatedHost, parent: str, type_id: str, number: int) -> None:
    """From now on each write to ``create`` of this type fails with this errno, one of ``FAILING``."""
    path = create_file(host, parent, type_id)
    files.remove(path)
    files.link(path, FAILING[number])


def mend(host: SimulatedHost, parent: str, type_id: str) -> None:
    """The file ``create`` works again."""
    path = create_file(host, parent, type_id)
    files.remove(path)
    files.write(path, "")
