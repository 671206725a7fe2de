# SPDX-License-Identifier: Apache-2.0
"""Ledger: what nodeagent did to the host, or saw on it, that the host itself does not show for ever. Pure.

Kept on disk by ``agent.changing.ledger``; an empty one means that what is there is not known to be ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

DRIVERS_RECORD = "/run/nodeagent/drivers.json"
"""The file of ``drivers``, ``asked`` and ``unprobed``; it exists while there is something to give back."""


class Asked(NamedTuple):
    """The VFIO driver that somebody has asked for by hand, and for which device: slots get other ones."""

    driver: str
    vendor: str | None = None
    device: str | None = None


class Ledger(NamedTuple):
    """``types``: VF → the vGPU type that we set; ``names``: type → name; ``listed``: VF → all it ever listed.

    ``drivers``: function that we bind → its own driver, "" for none; ``asked``: function → what was asked for
    it by hand (``nodeagent bind``). ``unprobed``: the PFs whose ``sriov_drivers_autoprobe`` we have switched
    off. Functions go by their addresses, types by their ids.
    """

    types: Mapping[str, str] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    listed: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    drivers: Mapping[str, str] = MappingProxyType({})
    asked: Mapping[str, Asked] = MappingProxyType({})
    unprobed: frozenset[str] = frozenset()

    @property
    def to_return(self) -> bool:
        """True if there is anything that the host gets back when nobody wants it changed any more."""
        return bool(self.drivers or self.asked or self.unprobed)
