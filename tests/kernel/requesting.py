# SPDX-License-Identifier: Apache-2.0
"""Scan requests that tests can wait for."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.kernel.scan_requests import ScanRequests


class HeardScanRequests(ScanRequests):
    """Scan requests, and a callback that hears every key."""

    def __init__(self, heard: Callable[[str | None], None]) -> None:
        super().__init__()
        self._heard = heard

    def add(self, key: str | None) -> None:
        """Request it, and say so."""
        super().add(key)
        self._heard(key)
