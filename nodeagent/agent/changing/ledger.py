# SPDX-License-Identifier: Apache-2.0
"""Keeps the Ledger: what nodeagent did to the host and the host itself does not show. Published, and on disk.

The one writer of the Snapshot's ``ledger`` and ``machine_id``, and of a section on disk that ends with the
boot, as the changes do. It has the types of vGPUs: a VF does not show who set its type, and with a type it
lists no others. It has the former drivers of functions that we bind, the manual requests and the PFs whose
``sriov_drivers_autoprobe`` we switched off: a daemon that starts looks for them (``app``).

An entry is on disk before the write that it describes: a crash between the two must not make our change a
foreign one. An entry too many counts only while the VF has that very type, and goes when the kernel refuses.
If it cannot be read, it is empty: then the host stays as it is, and that is logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial

import anyio

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import state, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.state import Section
from nodeagent.kernel.apply import sriov
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import nvidia
from nodeagent.kernel.scan.mdevs import read_machine_id
from nodeagent.model import plain
from nodeagent.model.change import Action, ActionKind
from nodeagent.model.host import Host
from nodeagent.model.snapshot import Asked, Ledger
from nodeagent.policy.change import ownership

SECTION = Section(
    state.LEDGER,
    Ledger(),
    partial(plain.load, Ledger),
    plain.dump,
    "without it functions would not get their own drivers back, nor vGPUs be known as nodeagent's",
)


def named(root: Root, host: Host) -> dict[str, str]:
    """Number → name of the vGPU types on the host, also as VFs once listed it; "" if it is not known."""
    known = SECTION.peek(root.prefix).names
    return {
        number: name or known.get(number, "") for number, name in nvidia.name_vgpu_types(root, host).items()
    }


class LedgerKeeper:
    """Reads, publishes and writes the Ledger."""

    name = "ledger"

    def __init__(self, root: Root, snapshots: Snapshots) -> None:
        self.opened: Latest[None] = Latest(None)  # touched when all on record was read
        self._root = root
        self._snapshots = snapshots
        self._saved = Ledger()
        self._saving = anyio.Lock()
        self._type_before: dict[str, str] = {}  # VF → the type on record before the one that is being set

    async def open(self) -> None:
        """Read what is on record since boot, and the machine id."""
        machine = await threads.call(read_machine_id, self._root)
        self._saved = await threads.call(SECTION.load, self._root.prefix)
        self._snapshots.publish(replace(self._snapshots.now, ledger=self._saved, machine_id=machine))
        self.opened.touch()

    def learn(self, busy: Set[str]) -> None:
        """Remember what the Host shows of vGPU types; but not of ``busy`` VFs, whose scan may be old."""
        now = self._snapshots.now
        self._publish(ownership.update_ledger(now.ledger, now.host, now.names, busy))

    async def run(self) -> None:
        """Put on disk what has changed, for ever; a refusal matters before a change only."""
        while True:
            seen = self._snapshots.version
            with suppress(KernelRefused):
                await self.save()
            await self._snapshots.newer(seen)

    async def save(self) -> None:
        """Put the Ledger on disk if it has changed; one writer at a time.

        :raises KernelRefused: if it cannot be written.
        """
        async with self._saving:
            now = self._snapshots.now.ledger
            if now != self._saved:
                await threads.call(SECTION.save, self._root.prefix, now)
                self._saved = now

    async def save_before(self, action: Action) -> None:
        """Put on disk what the host will not show once the action is taken.

        The switch of a PF is read now, since the last scan may be old.

        :raises KernelRefused: if that cannot be written; then the action must not be taken.
        """
        ledger = self._snapshots.now.ledger
        if action.kind is ActionKind.SET_VGPU_TYPE:
            vf = action.address
            if vf in ledger.types:
                self._type_before[vf] = ledger.types[vf]
            ledger = ledger._replace(types={**ledger.types, vf: action.type_id or ""})
        elif action.kind is ActionKind.BIND_DRIVERS:
            own = {move.address: move.back or "" for move in action.moves}
            ledger = ledger._replace(drivers={**ledger.drivers, **own})
        elif action.kind is ActionKind.SET_NUM_VFS and action.unprobed:
            if not await threads.call(sriov.probed, self._root, action.address):
                return
            ledger = self._snapshots.now.ledger
            ledger = ledger._replace(unprobed=ledger.unprobed | {action.address})
        else:
            return
        self._publish(ledger)
        await self.save()

    def note_end(self, action: Action, *, made: bool) -> None:
        """Drop the entry of what was given back, cleared or not set; ``run`` puts that on disk.

        A type that the VF got before, by a late write, stays on record when another is refused. So does the
        driver of a function that was not bound, as its override may not have been taken back.
        """
        ledger = self._snapshots.now.ledger
        before = self._type_before.pop(action.device, None)
        if made and action.kind is ActionKind.RESTORE_DRIVERS:
            drivers = {each: own for each, own in ledger.drivers.items() if each not in action.targets}
            self._publish(ledger._replace(drivers=drivers))
        elif made and action.kind is ActionKind.RESTORE_AUTOPROBE:
            self._publish(ledger._replace(unprobed=ledger.unprobed - {action.address}))
        elif action.kind is (ActionKind.CLEAR_VGPU_TYPE if made else ActionKind.SET_VGPU_TYPE):
            types = {vf: type_id for vf, type_id in ledger.types.items() if vf != action.address}
            if before is not None and not made:
                types[action.address] = before
            self._publish(ledger._replace(types=types))

    def request(self, asked: Mapping[str, Asked]) -> None:
        """From now on this is requested by hand; the section on disk follows."""
        self._publish(self._snapshots.now.ledger._replace(asked=asked))

    def _publish(self, ledger: Ledger) -> None:
        self._snapshots.publish(replace(self._snapshots.now, ledger=ledger))
