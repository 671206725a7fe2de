# SPDX-License-Identifier: Apache-2.0
"""What of the host cannot be read, told when it begins and when it ends. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.base import log
from nodeagent.base.errors import KernelRefused
from nodeagent.model.ids import mdev_uuid, pci_address

_HOST = "the host"


class Reads:
    """``blind``: why nothing of the host can be looked at now, in words, or None."""

    def __init__(self, deadline: float) -> None:
        """``deadline``: seconds after which a read hangs, for people."""
        self.blind: str | None = None
        self._deadline = deadline
        self._stuck: frozenset[str] = frozenset()

    def tell(self, stuck: Iterable[str], error: KernelRefused | None) -> None:
        """``stuck``: the keys of all that does not answer now; ``error``: why the last scan brought nothing.

        An error with a path is one more thing that does not answer.
        """
        hanging = frozenset(stuck) | ({error.path} if error is not None and error.path else set())
        self._tell_hangs(hanging)
        self._tell_blind(error if error is not None and not error.path else None)

    def _tell_hangs(self, now: frozenset[str]) -> None:
        before, self._stuck = self._stuck, now
        for key in sorted(now - before):
            log.event(
                log.HOST_READ_SLOW,
                what=key,
                seconds=str(self._deadline),
                device=_device(key),
                pci_address=pci_address(key),
            )
        for key in sorted(before - now):
            log.event(log.HOST_READ_BACK, what=key, device=_device(key), pci_address=pci_address(key))

    def _tell_blind(self, error: KernelRefused | None) -> None:
        before, self.blind = self.blind, None if error is None else error.what
        if error is not None and before is None:
            log.event(log.HOST_NOT_READ, error=error.what, hint=error.hint)
        elif error is None and before is not None:
            log.event(log.HOST_READ_BACK, what=_HOST)


def _device(key: str) -> str | None:
    """The key if it is a device's, and not a group's."""
    return pci_address(key) or mdev_uuid(key)
