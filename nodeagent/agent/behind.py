# SPDX-License-Identifier: Apache-2.0
"""The functions behind nodes and USB devices: given to a pod, or about to lose their driver? Never both.

An Allocate and a change of drivers may meet at any moment; the one leaves its mark before the other looks.
What was given is told by the kubelet when it names the pod and its file has the answer: until then, and not
for long, it is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import Refused
from nodeagent.model.allocation import Allocations, Possession
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups

_Given = Mapping[Possession, frozenset[str]]
"""What was given → the functions behind it."""


class Behind:
    """Writes ``behind`` of the Snapshot."""

    def __init__(self, snapshots: Snapshots, foreign_allocate: float) -> None:
        """``foreign_allocate``: seconds that another plugin may take for the pod under admission."""
        self._foreign_allocate = foreign_allocate
        self._snapshots = snapshots
        self._given: _Given = {}
        self._withdrawn: frozenset[str] = frozenset()
        self._bound: Mapping[str, frozenset[str]] = {}  # let go of, until VFIO had them → as in ``let_go``

    def give(self, possessions: Iterable[Possession], functions: Collection[str]) -> None:
        """These are given, and have the functions behind them.

        Of what the kubelet does not name by then, the pod was refused half-way.

        :raises Refused: if one of the functions is about to get another driver.
        """
        for each in sorted(self._withdrawn.intersection(functions)):
            raise Refused(f"{each}, which is behind it, is getting another driver", "try the pod again")
        if functions:
            given: _Given = dict.fromkeys(possessions, frozenset(functions))
            self._publish({**self._given, **given})
            asyncio.get_running_loop().call_later(self._foreign_allocate, self._over, given)

    def named(self, allocations: Allocations) -> None:
        """The kubelet knows so much now."""
        if self._given:
            self._publish({each: self._given[each] for each in self._given if not _names(allocations, each)})
        if any(self._bound.values()):
            given = replace(self._snapshots.now, allocations=allocations).given_paths
            self._bound = {each: away.intersection(given) for each, away in self._bound.items()}

    def withdraw(self, functions: Collection[str]) -> bool:
        """Their drivers are about to change; False, and no mark, if one was given a moment ago."""
        now = self._snapshots.now
        if not now.behind.isdisjoint(functions):
            return False
        self._withdrawn = self._withdrawn.union(functions)
        away = {each: _away_before(PciAddress(each), now, self._bound) for each in functions}
        if (let_go := {**now.let_go, **away}) != now.let_go:
            self._snapshots.publish(replace(now, let_go=let_go))
        return True

    def restore(self, functions: Collection[str]) -> None:
        """Nothing is done to these any more, and the Host shows what became of them.

        What VFIO has by then has nothing behind it; what went back, and whose node may come later, has.
        """
        self._withdrawn = self._withdrawn.difference(functions)
        now = self._snapshots.now
        bound = {
            each: now.let_go[each] for each in functions if each in now.let_go and _on_vfio(each, now.host)
        }
        if bound:
            self._bound = {**self._bound, **bound}
            left = {each: away for each, away in now.let_go.items() if each not in bound}
            self._snapshots.publish(replace(now, let_go=left))

    def _over(self, given: _Given) -> None:
        """What was given again since is not over."""
        now = self._given
        self._publish({each: now[each] for each in now if now[each] is not given.get(each)})

    def _publish(self, given: _Given) -> None:
        self._given = given
        behind = frozenset[str]().union(*given.values())
        if behind != self._snapshots.now.behind:
            self._snapshots.publish(replace(self._snapshots.now, behind=behind))


def _away_before(
    address: PciAddress, snapshot: Snapshot, bound: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """The given nodes that nothing is behind while a driver of the host has the function: none of its.

    The plan has seen no other reason to wait by then. Where it has no such driver, what is known stays so: a
    node that was given since may come with the driver.
    """
    function = snapshot.host.functions.get(address)
    if function is None or function.driver is None or groups.vfio_bound(function):
        return snapshot.let_go.get(address, bound.get(address, frozenset()))
    return frozenset(snapshot.unplaced)


def _on_vfio(address: str, host: Host) -> bool:
    function = host.functions.get(PciAddress(address))
    return function is not None and groups.vfio_bound(function)


def _names(allocations: Allocations, possession: Possession) -> bool:
    """True if the kubelet names it with a pod, and its file what was given: that is written later.

    A container asks for all that it wants first, also of other plugins.
    """
    return allocations.holder_of(*possession) is not None and bool(allocations.answer(*possession))
