# SPDX-License-Identifier: Apache-2.0
"""Carries out one step after the other: each write in a thread of its own, the deadline kept outside.

Two writes never work on one device at a time. A write that is late is told, and left alone: it cannot be
taken back, and ends when the kernel lets it. Then its result counts as any other. What was refused is kept
in ``retries``, and the vGPU types that we set in ``ledger``: a type is on disk there before it is set, and
what is not ours any more leaves it with the next ``save``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from nodeagent.agent.changing import ledger
from nodeagent.agent.changing.retries import Retries
from nodeagent.base import log, threads
from nodeagent.base.backoff import Backoff
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.apply import actions
from nodeagent.kernel.root import Root
from nodeagent.model.action import ClearVgpuType, SetVgpuType, Step
from nodeagent.model.host import Host
from nodeagent.model.ids import pci_address
from nodeagent.model.ledger import Ledger
from nodeagent.policy.change import ledgers

DEADLINE = 10.0  # seconds after which a write is told to be late

Call = threads.Call[None]


class Executor:
    """Writes to one host. ``on_written`` is told each step whose write has returned."""

    def __init__(
        self, root: Root, backoff: Backoff, on_written: Callable[[Step], None], deadline: float = DEADLINE
    ) -> None:
        self.retries = Retries(backoff)
        self.ledger = self._saved = Ledger()
        self.writes = 0
        self._root = root
        self._deadline = deadline
        self._on_written = on_written
        self._locks: dict[str, anyio.Lock] = {}
        self._under_way: dict[str, tuple[Step, Call]] = {}
        self._overdue: frozenset[Step] = frozenset()
        self._recording = anyio.Lock()
        self._before: dict[str, str] = {}  # VF → the type on record before the one that is being set

    @property
    def devices(self) -> frozenset[str]:
        """The devices on which a write is under way."""
        return frozenset(device for device, (_, call) in self._under_way.items() if not call.ended)

    @property
    def under_way(self) -> tuple[Step, ...]:
        """The steps whose write is under way."""
        return tuple(step for step, call in self._under_way.values() if not call.ended)

    @property
    def late(self) -> tuple[Step, ...]:
        """Those that have been under way for longer than the deadline."""
        return tuple(step for step in self.under_way if step in self._overdue)

    async def open(self) -> None:
        """Read what is remembered since boot."""
        self.ledger = self._saved = await threads.call(ledger.read, self._root.path(ledger.PATH))

    def learn(self, host: Host, named: Mapping[str, str]) -> None:
        """Remember what the host shows of vGPU types; ``named`` has further names of them."""
        self.ledger = ledgers.learned(self.ledger, host, named)

    async def save(self) -> None:
        """Put the record on disk if it has changed; one writer of the file at a time.

        :raises KernelRefused: if it cannot be written.
        """
        async with self._recording:
            now = self.ledger
            if now != self._saved:
                await threads.call(ledger.write, self._root.path(ledger.PATH), now)
                self._saved = now

    async def take(self, step: Step, group: TaskGroup, allowed: Callable[[], bool] = lambda: True) -> bool:
        """Make the change; False if it is not made, or not yet: then all that follows is to be planned anew.

        ``allowed`` is asked in the very moment of the write. ``group`` waits for one that is late.
        """
        device = step.action.device
        async with self._locks.setdefault(device, anyio.Lock()):
            if device in self.devices:
                return False
            try:
                await self._remember(step)
            except KernelRefused as error:
                self._refused(step, error)
                return False
            if not allowed():
                self._forget(step, SetVgpuType)
                return False
            call = self._begin(step)
            with anyio.move_on_after(self._deadline):
                await call.wait()
        if call.ended:
            return await self._end(step, call)
        self._overdue |= {step}
        why = f"the kernel has not answered for {self._deadline:g} s"
        log.event(
            log.ACTION_WAITING,
            action=step.action.describe(),
            why=why,
            pci_address=pci_address(step.action.card),
        )
        group.start_soon(self._end, step, call, name=f"late write to {device}")
        return False

    def resume(self, group: TaskGroup) -> None:
        """Wait again for the writes that were under way when the last run ended."""
        for step, call in tuple(self._under_way.values()):
            group.start_soon(self._end, step, call, name=f"late write to {step.action.device}")

    def _begin(self, step: Step) -> Call:
        self.writes += 1
        call = threads.start(actions.apply, self._root, step.action)
        self._under_way[step.action.device] = (step, call)
        return call

    async def _end(self, step: Step, call: Call) -> bool:
        await call.wait()
        self._overdue -= {step}
        self._under_way.pop(step.action.device, None)
        try:
            await call.result()
        except KernelRefused as error:
            self._refused(step, error)
            return False
        else:
            self._done(step)
            return True
        finally:
            self._on_written(step)

    def _done(self, step: Step) -> None:
        self.retries.succeeded(step)
        self._forget(step, ClearVgpuType)
        log.event(
            log.ACTION_DONE,
            action=step.action.describe(),
            why=step.why,
            pci_address=pci_address(step.action.card),
        )

    def _refused(self, step: Step, error: KernelRefused) -> None:
        self._forget(step, SetVgpuType)
        told = {each.step.place for each in self.retries.failures.values()}
        if self.retries.refused(step, error, anyio.current_time()) and step.place not in told:
            log.event(
                log.ACTION_FAILED,
                action=step.action.describe(),
                error=error.what,
                hint=error.hint,
                pci_address=pci_address(step.action.card),
            )

    async def _remember(self, step: Step) -> None:
        """Put a vGPU type on record, on disk."""
        if isinstance(step.action, SetVgpuType):
            vf, types = step.action.address, self.ledger.types
            self._before = self._before | ({vf: types[vf]} if vf in types else {})
            self.ledger = replace(self.ledger, types={**types, vf: step.action.type_id})
            await self.save()

    def _forget(self, step: Step, kind: type[SetVgpuType | ClearVgpuType]) -> None:
        """After a step of this kind the VF has no type of ours; the file follows with the next ``save``.

        A type that it was given before, by a late write, stays on record when another is refused.
        """
        before = self._before.pop(step.action.device, None)
        if not isinstance(step.action, kind):
            return
        types = {vf: kind for vf, kind in self.ledger.types.items() if vf != step.action.device}
        if before is not None and isinstance(step.action, SetVgpuType):
            types[step.action.device] = before
        self.ledger = replace(self.ledger, types=types)
