# SPDX-License-Identifier: Apache-2.0
"""HostUses: what a host was seen to use of one of its own devices. Evidence, no verdict."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class UseKind(StrEnum):
    """In which way a host uses one of its own devices."""

    NETWORK = "network"  # an interface that is up with an address, carries a route, or is part of another
    MOUNTED = "mounted"
    SWAP = "swap"
    STACKED = "stacked"  # below md, LVM or another device mapper of which nothing is mounted or swapped on
    OPEN = "open"  # a process has the disk itself, or a character device below the function, open
    DISPLAY = "display"  # the firmware shows its messages there
    KEYBOARD = "keyboard"  # what is typed there goes to the console


FIRM = frozenset({UseKind.MOUNTED, UseKind.SWAP, UseKind.OPEN})
"""Uses that nobody can answer for."""


class HostUse(NamedTuple):
    """One use that a host makes of a function: ``eth0``, ``default route``."""

    kind: UseKind
    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.what}, {self.how}"


class HostUses(NamedTuple):
    """What a host was seen to use of a function, and what of that could not be seen, in words.

    Both empty: everything was seen, and it uses nothing.
    """

    found: tuple[HostUse, ...] = ()
    unseen: tuple[str, ...] = ()

    def counting(self, forced: bool) -> HostUses:
        """What of it keeps the host's driver on the function; ``forced``: an operator answers for the rest.

        What is mounted, swapped on or open stays in any case: to take it away would lose data, or hang.
        """
        return HostUses(tuple(use for use in self.found if use.kind in FIRM)) if forced else self
