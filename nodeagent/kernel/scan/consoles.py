# SPDX-License-Identifier: Apache-2.0
"""What the console of the kernel is on: the first framebuffer, and the serial ports that it was told.

A driver's framebuffer has no process that has it open while nothing but the console shows there, and neither
has a serial port without a login. Which function they are below is said by their paths.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.kernel.root import Root
from nodeagent.model.uses import HostUse, UseKind

_FRAMEBUFFERS = "/sys/class/graphics"
_TERMINALS = "/sys/class/tty"
_FIRST = "fb0"  # fbcon takes the first one for all consoles (drivers/video/fbdev/core/fbcon.c)


def targets(root: Root) -> dict[str, str]:
    """Name → where it is, of each device that the console is on."""
    both = ((path.rpartition("/")[2], root.target(path)) for path in _paths(root))
    return {name: target for name, target in both if target is not None}


def use(name: str) -> HostUse:
    """What the host has it for."""
    how = "the console shows there" if name == _FIRST else "the console of the kernel"
    return HostUse(UseKind.DISPLAY, name, how)


def _paths(root: Root) -> Iterator[str]:
    if root.exists(f"{_FRAMEBUFFERS}/fbcon"):
        yield f"{_FRAMEBUFFERS}/{_FIRST}"
    for name in (root.text(f"{_TERMINALS}/console/active") or "").split():
        yield f"{_TERMINALS}/{name}"
