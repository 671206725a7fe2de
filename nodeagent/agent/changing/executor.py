# SPDX-License-Identifier: Apache-2.0
"""Carries out one step after the other: each write in a thread of its own, the deadline kept outside.

Two writes never work on one device at a time. A write that is late is logged, and left alone: it cannot be
taken back, and ends when the kernel lets it. Then its result counts as any other, and ``ended`` says so.
What was refused goes to ``retries``, and what is set and cleared to the ledger, which knows of it before.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import anyio

from nodeagent.agent.changing.ledger import LedgerKeeper
from nodeagent.agent.changing.retries import Retries
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.kernel.wakes import Wakes
from nodeagent.model.action import Action, Step
from nodeagent.model.ids import pci_address, pci_order


class _Write(NamedTuple):
    """A write, and when it was begun (seconds, monotonic)."""

    step: Step
    call: threads.Call[None]
    began: float


class Outcome(Enum):
    """What became of a step."""

    MADE = "made"
    REFUSED = "refused, and to be tried again at its time"
    UNPLANNED = "not made, or not yet: what follows is to be planned anew"


class Executor:
    """Writes to one host. ``ended`` changes when a late write has ended, and its result is noted."""

    name = "late writes"

    def __init__(
        self,
        write: Callable[[Action], None],
        wakes: Wakes,
        retries: Retries,
        ledger: LedgerKeeper,
        deadline: float,
    ) -> None:
        """``write`` makes one change, and may block for as long as a device is in use."""
        self.writes = 0
        self.ended: Latest[None] = Latest(None)
        self._write = write
        self._wakes = wakes
        self._retries = retries
        self._ledger = ledger
        self._deadline = deadline
        self._locks: dict[str, anyio.Lock] = {}
        self._under_way: dict[str, _Write] = {}
        self._left: Latest[frozenset[Step]] = Latest(frozenset())  # to ``run``, which notes their results

    @property
    def under_way(self) -> tuple[Step, ...]:
        """The steps whose write is under way; one that is late stays until its result is noted."""
        return tuple(write.step for write in self._under_way.values())

    @property
    def late(self) -> tuple[Step, ...]:
        """Those that have been under way for longer than the deadline."""
        latest = anyio.current_time() - self._deadline
        left = (write for write in self._under_way.values() if write.step in self._left.get())
        return tuple(write.step for write in left if write.began <= latest)

    async def take(self, step: Step, allowed: Callable[[], bool]) -> Outcome:
        """Make the change. ``allowed`` is asked in the very moment of the write."""
        device = step.action.device
        async with self._locks.setdefault(device, anyio.Lock()):
            if device in self._under_way:
                return Outcome.UNPLANNED
            try:
                await self._ledger.begin(step.action)
            except KernelRefused as error:
                return self._refused(step, error)
            if not allowed():
                self._ledger.end(step.action, made=False)
                return Outcome.UNPLANNED
            write = self._begin(step)
            try:
                with anyio.move_on_after(self._deadline):
                    return await self._end(write)
            finally:
                if device in self._under_way:
                    self._leave(write)
        return _waits(step, f"the kernel has not answered for {self._deadline:g} s")

    async def run(self) -> None:
        """Note the results of late writes, for ever."""
        while True:
            seen = self._left.version
            for write in tuple(self._under_way.values()):
                if write.call.ended and write.step in self._left.get():
                    try:
                        await self._end(write)
                    finally:
                        self.ended.touch()
            await self._left.newer(seen)

    def _begin(self, step: Step) -> _Write:
        self.writes += 1
        write = _Write(step, threads.start(self._write, step.action), anyio.current_time())
        self._under_way[step.action.device] = write
        return write

    def _leave(self, write: _Write) -> None:
        """Late, or who waited was cancelled."""
        self._left.set(self._left.get() | {write.step})
        write.call.when_ended(self._left.touch)

    async def _end(self, write: _Write) -> Outcome:
        """Wait for the end and note the result; a cancellation leaves the write under way."""
        step = write.step
        try:
            await write.call.result()
        except Exception as error:
            self._returned(step)
            if isinstance(error, KernelRefused):
                return self._refused(step, error)
            raise
        self._returned(step)
        self._retries.succeeded(step, anyio.current_time())
        self._ledger.end(step.action, made=True)
        log.event(
            log.ACTION_DONE,
            action=step.action.text,
            why=step.why,
            device=targets(step.action),
            type=step.action.type_id,
            pci_address=pci_address(step.action.card),
        )
        return Outcome.MADE

    def _returned(self, step: Step) -> None:
        del self._under_way[step.action.device]
        self._left.set(self._left.get() - {step})
        for key in step.action.targets:
            self._wakes.wake(key)

    def _refused(self, step: Step, error: KernelRefused) -> Outcome:
        self._ledger.end(step.action, made=False)
        known = {failure.step.place for failure in self._retries.failures.values()}
        if not self._retries.refused(step, error, anyio.current_time()):
            return Outcome.UNPLANNED
        if step.place not in known:
            log.event(
                log.ACTION_FAILED,
                action=step.action.text,
                error=error.what,
                hint=error.hint,
                device=targets(step.action),
                type=step.action.type_id,
                pci_address=pci_address(step.action.card),
            )
        return Outcome.REFUSED


def _waits(step: Step, why: str) -> Outcome:
    action = step.action
    log.event(
        log.ACTION_WAITING,
        action=action.text,
        why=why,
        device=targets(action),
        type=action.type_id,
        pci_address=pci_address(action.card),
    )
    return Outcome.UNPLANNED


def targets(action: Action) -> tuple[str, ...]:
    """The ids that a log line on the action is found by."""
    return tuple(sorted(action.targets, key=pci_order))
