# SPDX-License-Identifier: Apache-2.0
"""Looks at a host for code that is not asynchronous: each is one of the daemon's, with its threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.runner import ScanRunner
from nodeagent.model.host import Host, Recovery
from nodeagent.model.ids import PciAddress

NOTHING = Host()


class Looks:
    """Looks at the host below one root."""

    def __init__(self, root: Root) -> None:
        self._look = ScanRunner(root)

    def full(
        self,
        previous: Host = NOTHING,
        *,
        nodes: Sequence[str] = (),
        recoveries: Mapping[PciAddress, Recovery] | None = None,
    ) -> Host:
        """Look at everything."""
        return anyio.run(self._look.look, None, previous, nodes, recoveries)

    def refresh(
        self,
        previous: Host,
        keys: frozenset[str],
        *,
        nodes: Sequence[str] = (),
        recoveries: Mapping[PciAddress, Recovery] | None = None,
    ) -> Host:
        """Look at what the keys name."""
        return anyio.run(self._look.look, keys, previous, nodes, recoveries)

    def unchanged(self, ids: Sequence[str], host: Host) -> bool:
        """Glance at the functions and mdevs."""
        return anyio.run(self._look.unchanged, ids, host)
