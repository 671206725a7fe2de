# SPDX-License-Identifier: Apache-2.0
"""What is told of the names of resources: where they come from, and which are others than they were."""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.model.ids import ResourceName


class Rename(NamedTuple):
    """A resource that discovery called ``old`` and calls ``new``; the entry ``alias`` keeps the old name."""

    old: ResourceName
    new: ResourceName
    alias: str


class NamesStatus(NamedTuple):
    """Where names come from, and which changed with this start.

    ``bundled`` is the day of the bundled pci.ids. ``kept`` change when a daemon starts while no pod is known
    to hold a device by the old name.
    """

    bundled: str = ""
    changed: tuple[Rename, ...] = ()
    kept: tuple[Rename, ...] = ()
