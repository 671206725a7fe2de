# SPDX-License-Identifier: Apache-2.0
"""An mdev that exists already, on a card of the simulated host."""

from __future__ import annotations

from contextlib import closing

from nodeagent.base.watch import DirectoryWatcher
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.mdev import Card, MdevKernel, SimulatedCards, Type, add_card

UUID = "7d1a1b4e-5a57-4c8e-9d52-0f6a4d1c2b3e"
TYPE = "nvidia-228"
_CARD = "0000:c1:00.0"


def add(host: SimulatedHost) -> str:
    """Add the card and the mdev; return the number of the mdev's IOMMU group."""
    card = Card(_CARD, (Type(TYPE, 2, "GRID T4-8A"),))
    add_card(host, card, 20)
    kernel = MdevKernel([card])
    kernel.create(card.address, TYPE, UUID)
    with closing(DirectoryWatcher()) as watcher:
        SimulatedCards(host, kernel, watcher)
    return str(kernel.made[UUID].group)


def rule(name: str) -> dict[str, object]:
    """A rule that offers it by DRA."""
    return {"name": name, "mdev": [{"types": [TYPE]}], "via": "dra"}
