# SPDX-License-Identifier: Apache-2.0
"""The USB devices of a run: two sticks that are given one by one, and two sets of a kind K and a kind J.

They are pulled out while nobody has them, and get another number when they come back. Knows no pods.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox import plugs
from tests.blackbox.harness import Node, health
from tests.blackbox.plugs import ONE, SET
from tests.sim.usb import Plug

RULES = f"""\
  - {{name: {ONE}, usb: [{{vendors: ['46f4']}}]}}
  - {{name: {SET}, bundle: true, usb: [{{vendors: ['1234']}}, {{vendors: ['1235']}}]}}
"""
_SINGLE, _KINDS, _EACH = "AB", "KJ", "12"
_FIRST = 4  # the first number on the bus


@dataclass
class Stick:
    """One device: where it is plugged in, and its number on the bus; 0 while it is away."""

    port: str
    plug: Plug
    number: int

    @property
    def unit(self) -> str:
        """Its name as something that one machine may have."""
        return f"usb:{self.plug.serial}"

    @property
    def path(self) -> str:
        """Its node."""
        return f"/dev/bus/usb/001/{self.number:03}"


class Sticks:
    """All of a node, which has none at first."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._last = _FIRST
        self.all: list[Stick] = []

    def plug_all(self) -> None:
        """The node gets them."""
        wanted = [plugs.stick(serial) for serial in _SINGLE]
        wanted += [Plug("1234", "5678", f"K{number}") for number in _EACH]
        wanted += [Plug("1235", "5678", f"J{number}") for number in _EACH]
        for place, plug in enumerate(wanted, 1):
            stick = Stick(f"1-{place}", plug, 0)
            self.all.append(stick)
            self.plug(stick)

    def plug(self, stick: Stick) -> None:
        """It comes, with a number of its own."""
        self._last += 1
        plugs.plugged(self._node, stick.port, stick.plug, self._last)
        stick.number = self._last

    def pull(self, stick: Stick) -> None:
        """It goes."""
        self._node.usb.unplug(stick.port)
        stick.number = 0

    def at(self, number: int) -> str | None:
        """What has this number, as something that one machine may have."""
        return next((stick.unit for stick in self.all if stick.number == number), None)

    def path(self, unit: str) -> str:
        """The node of what is so called."""
        return next(stick.path for stick in self.all if stick.unit == unit)

    def offered(self) -> dict[str, int]:
        """Resource → how many of it."""
        return {ONE: len(_SINGLE), SET: len(_EACH)} if self.all else {}

    def free(self, owned: Collection[str]) -> list[str]:
        """A resource for each that can be asked for when these are owned."""
        if not self.all:
            return []
        single = [ONE for serial in _SINGLE if f"usb:{serial}" not in owned]
        return single + [SET] * min(self._left(kind, owned) for kind in _KINDS)

    def _left(self, kind: str, owned: Collection[str]) -> int:
        return sum(f"usb:{kind}{number}" not in owned for number in _EACH)

    def unhealthy(self, kubelet: FakeKubelet, owned: Collection[str]) -> list[str]:
        """What is free when these are owned, and yet not Healthy in the last lists."""
        free = self.free(owned)
        found = []
        for resource in self.offered():
            told = health(kubelet, resource)
            if list(told.values()).count("Healthy") < free.count(resource):
                found.append(f"{resource}: {free.count(resource)} are free, told is {told}")
        return found
