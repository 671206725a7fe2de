# SPDX-License-Identifier: Apache-2.0
"""Before a device is given: is it closed by whoever had it? Released is what the host shows.

After a force deletion the kubelet forgets a pod seconds before its container ends, and gives the same device
to the next one at once. What can be seen: the kernel's count of opens of a VFIO function, and which processes
have the nodes of an mdev or a vendor's vGPU. What cannot be seen does not stop anybody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import anyio

from nodeagent.agent.forgotten import Forgotten
from nodeagent.agent.looks import Looks
from nodeagent.agent.observe import Observer
from nodeagent.agent.offering import Offering
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused, Refused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import pci
from nodeagent.kernel.wakes import Wakes
from nodeagent.model.allocation import Pods
from nodeagent.model.host import HostDevice, PciFunction, Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.model.resource import Isolation, Resource
from nodeagent.policy import groups
from nodeagent.policy.offer import grants, releases


class _Found(NamedTuple):
    """What is open of what is to be given."""

    opened: str | None = None  # one of that
    counted: frozenset[str] = frozenset()  # whose counts tell so; who has these was looked for

    @classmethod
    def of(cls, counted: Iterable[str], *others: Iterable[str]) -> _Found:
        """What counts tell comes first: it is certain."""
        counted = tuple(counted)
        return cls(next(chain(counted, *others), None), frozenset(counted))


class Closing:
    """Waits until what is to be given is closed. The one writer of the Snapshot's ``left_open``."""

    def __init__(
        self,
        root: Root,
        wakes: Wakes,
        observer: Observer,
        offering: Offering,
        snapshots: Snapshots,
        forgotten: Forgotten,
        timeouts: Timeouts,
    ) -> None:
        self._root = root
        self._wakes = wakes
        self._observer = observer
        self._offering = offering
        self._snapshots = snapshots
        self._forgotten = forgotten
        self._timeouts = timeouts
        self._looks = Looks(root, timeouts)
        self._shut: frozenset[int | str | None] = frozenset()  # groups whose nodes were closed when seen last

    async def recheck(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Read again all that decides about these devices, and decide.

        What was not known to be behind them before is read next: a device may be in another group by now.

        :raises KernelRefused: if what has changed could not be read.
        """
        known: frozenset[str] | None = None
        behind = grants.behind(resource, device_ids, self._offering.decision)
        while known is None or not known.issuperset(behind):
            await self._observer.recheck(behind)
            self._offering.one_turn()
            known = frozenset(behind)
            behind = grants.behind(resource, device_ids, self._offering.decision)

    async def described(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Wait until what the CDI files of these devices say is what was read of them.

        :raises Refused: if that takes too long.
        """
        from nodeagent.agent import cdi_specs  # here: few nodes have rules for such

        with anyio.move_on_after(self._timeouts.cdi_file_read):
            while stamps := grants.stamps(resource, device_ids, self._offering.decision):
                if await threads.call(cdi_specs.unchanged, self._root, stamps):
                    return
                await anyio.sleep(self._timeouts.device_close_poll)
                self._offering.one_turn()
            return
        raise Refused(
            f"{resource.name}: {', '.join(device_ids)}: the CDI file has changed, or does not answer",
            "it is read again; try the pod again",
        )

    async def closed(
        self, resource: Resource, device_ids: Sequence[str], pods: Pods, deadline: float
    ) -> None:
        """Wait until nothing has these devices open, or their groups, of which none of the pods has any.

        What was read before the kubelet was asked is old by now: opening raises no event either.

        :raises Refused: if that takes too long, with the process that has it open.
        :raises KernelRefused: if what has changed could not be read.
        """
        await self.recheck(resource, device_ids)
        found = await self._opened(resource, device_ids, pods, _Found())
        while found.opened:
            if anyio.current_time() >= deadline:
                raise await self._left_open(resource, found.opened)
            await anyio.sleep(self._timeouts.device_close_poll)
            with anyio.CancelScope(deadline=deadline):  # what takes longer has shown nothing new
                await self.recheck(resource, device_ids)
                found = await self._opened(resource, device_ids, pods, found)

    async def _left_open(self, resource: Resource, device_id: str) -> Refused:
        """It was waited for in vain; the process that has it open, if that is known."""
        member = self._snapshots.now.host.device(device_id)
        by_group = member is not None and _by_group(member)
        process = "" if member is None else await self._looks.by_whom(member, by_group=by_group)
        self._keep(device_id, process)
        return Refused(
            f"{resource.name}: {device_id}: it is open, and no pod of this node has it"
            f"{f': see {process}' if process else ''}",
            "the container of a pod that was deleted by force may still run: look for its process",
        )

    async def refresh(self, _: Collection[str]) -> None:
        """What was refused for being open may be closed by now: what nobody is seen to have stops nobody.

        If nothing can be looked at, it stays so.
        """
        host, known = self._snapshots.now.host, self._snapshots.now.left_open
        refused = {each.id: each for each in map(host.device, known) if each is not None}
        remembered = (each for each in self._looks.remembered(host) if not _counted(each))
        members = {**{each.id: each for each in remembered}, **refused}
        if not (known or members):
            return
        with contextlib.suppress(KernelRefused):
            seen = await self._seen(tuple(members.values()))
            now = self._snapshots.now.left_open
            stays = (each for each in now if each in seen.openers or each not in known)
            self._publish({each: seen.openers.get(each, (now[each],))[-1] for each in stays})

    def _keep(self, device_id: str, process: str) -> None:
        """List it as open from now on; where a count tells that, it is."""
        if not _counted(self._snapshots.now.host.device(device_id)):
            self._publish({**self._snapshots.now.left_open, device_id: process})

    def _publish(self, left_open: Mapping[str, str]) -> None:
        """Nobody is given these until they are closed."""
        if left_open != self._snapshots.now.left_open:
            self._snapshots.publish(replace(self._snapshots.now, left_open=left_open))

    async def answering(self, device_ids: Sequence[str]) -> None:
        """Look whether these devices are still on the bus; a verdict on one that is not is in the Host then.

        The look wakes a device that sleeps. It is opened next anyway.
        """
        functions = grants.given(device_ids, self._offering.decision)
        with anyio.move_on_after(self._timeouts.device_wake):
            for address in await threads.call(_fallen, self._root, functions):
                self._wakes.recovery(address, Recovery.FALLEN)
                await self._observer.rescan(frozenset({address}))

    async def _opened(
        self, resource: Resource, device_ids: Sequence[str], pods: Pods, before: _Found
    ) -> _Found:
        """One of the devices, or of what shares their groups, that is open, if any is.

        What is not proven to be closed is taken for the pod's that was forgotten a moment ago. Of what has no
        count somebody may have the node of the group open, and no device of it yet, or no more: that counts
        nothing, and keeps everybody else from the group.
        """
        unaccounted = releases.unaccounted(resource, device_ids, self._offering.decision, pods)
        alone = resource.isolation is Isolation.NONE
        members = tuple({each.id: each for each in unaccounted if not (alone and _by_group(each))}.values())
        counted = tuple(each.id for each in members if _counted(each))
        if not members:
            return _Found()
        if counted and before.counted.issuperset(counted):  # to look at all again may take its time
            await self._looks.by_names(members, frozenset(each.id for each in members if _by_group(each)))
            return _Found.of(counted)
        began, shut = anyio.current_time(), (each for each in members if each.group in self._shut)
        quickly = frozenset(each.id for each in shut if not self._forgotten.has(each, began))
        seen, now = await self._seen(members, quickly), anyio.current_time()
        opened = [each.id for each in members if each.id in seen.openers]
        lately = [each.id for each in members if self._forgotten.has(each, now)]
        return _Found.of(counted, opened, [each for each in lately if each not in seen.closed])

    async def _seen(
        self, members: Sequence[HostDevice], quickly: frozenset[str] = frozenset()
    ) -> in_use.Seen:
        """Who has these open; whose group was closed is known from then on."""
        by_group = frozenset(each.id for each in members if _by_group(each))
        seen = await self._looks.at_all(members, by_group, quickly & by_group)
        opened = {each.group for each in members if _counted(each) or each.id in seen.openers}
        closed = {each.group for each in members if each.id in seen.closed & by_group}
        self._shut = (self._shut | closed) - opened
        return seen


def _by_group(member: HostDevice) -> bool:
    """True if a count tells that it is closed: then it is the node of its group that may be open."""
    return not (groups.uncertain(member) or _counted(member))


def _counted(member: HostDevice | None) -> bool:
    """True if its count says that it is open."""
    return isinstance(member, PciFunction) and groups.counted_open(member)


def _fallen(root: Root, functions: Sequence[PciAddress]) -> Sequence[PciAddress]:
    return [address for address in functions if pci.fallen(root, address)]
