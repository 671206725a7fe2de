# SPDX-License-Identifier: Apache-2.0
"""Looks at a host for code that is not asynchronous: each is one of the daemon's, with its threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.scanner import Scanner
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Host, Recovery
from nodeagent.model.ids import PciAddress

NOTHING = Host()


class Looks:
    """Looks at the host below one root."""

    def __init__(self, root: Root) -> None:
        self._runner = Scanner(root, ScanRequests(), deadline=2.0, timeouts=Timeouts())

    def full(
        self,
        previous: Host = NOTHING,
        *,
        nodes: Sequence[str] = (),
        recoveries: Mapping[PciAddress, Recovery] | None = None,
    ) -> Host:
        """Look at everything."""
        return anyio.run(self._runner.scan, None, previous, nodes, recoveries or {})

    def refresh(
        self,
        previous: Host,
        keys: frozenset[str],
        *,
        nodes: Sequence[str] = (),
        recoveries: Mapping[PciAddress, Recovery] | None = None,
    ) -> Host:
        """Look at what the keys name."""
        return anyio.run(self._runner.scan, keys, previous, nodes, recoveries or {})

    def recheck(self, ids: Sequence[str], host: Host) -> bool:
        """Read the functions and mdevs again; True if they are still as the Host says."""
        return anyio.run(self._runner.recheck, ids, host)[0]
