# SPDX-License-Identifier: Apache-2.0
"""Keeps the Ledger: the record, on disk and in the Snapshot, of nodeagent's changes that the host does not
show.

No other component writes ``ledger`` and ``machine_id`` of the Snapshot. The file on disk is valid until the
next boot, because the changes also end at the next boot. The Ledger records vGPU types, because a VF with a
vGPU type does not show which program set it, and lists no other types. The Ledger also records the former
drivers of PCI functions that we bind, the manual requests, and the PFs whose ``sriov_drivers_autoprobe`` we
switched off. A starting daemon reads the Ledger (``app``).

An entry is saved to disk before the change that it describes is made, so after a crash nodeagent never takes
its own change for an administrator's. After a crash before the change, the entry has no effect unless the VF
has exactly the recorded type. If the kernel refuses the change, the entry is removed. An unreadable Ledger
file counts as empty: the host then stays as it is, and the error is logged.
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
from nodeagent.model.change import Action, ActionKind, Asked, Ledger
from nodeagent.model.host import Host
from nodeagent.policy.change import ownership

SECTION = Section(
    state.LEDGER,
    Ledger(),
    partial(plain.load, Ledger),
    plain.dump,
    "after a restart nodeagent does not know the former drivers of PCI functions or the vGPUs it created",
)


def named(root: Root, host: Host) -> dict[str, str]:
    """The name of each vGPU type that VFs list or have listed, by number; "" if the name is unknown."""
    known = SECTION.peek(root.prefix).names
    return {
        number: name or known.get(number, "") for number, name in nvidia.name_vgpu_types(root, host).items()
    }


class LedgerKeeper:
    """Reads, publishes and saves the Ledger."""

    name = "ledger"

    def __init__(self, root: Root, snapshots: Snapshots) -> None:
        self.opened: Latest[None] = Latest(None)  # touched when the record was read
        self._root = root
        self._snapshots = snapshots
        self._saved = Ledger()
        self._saving = anyio.Lock()
        self._type_before: dict[str, str] = {}  # VF → its recorded type before the one that is being set

    async def open(self) -> None:
        """Read the entries since the last boot, and the machine id."""
        machine = await threads.call(read_machine_id, self._root)
        self._saved = await threads.call(SECTION.load, self._root.prefix)
        self._snapshots.publish(replace(self._snapshots.now, ledger=self._saved, machine_id=machine))
        self.opened.touch()

    def learn(self, busy: Set[str]) -> None:
        """Record the vGPU types that the Host shows, except those of ``busy`` VFs, whose scan may be old."""
        now = self._snapshots.now
        self._publish(ownership.update_ledger(now.ledger, now.host, now.names, busy))

    async def run(self) -> None:
        """Save the Ledger when it has changed, for ever. Here, a failed write of the file is not an error."""
        while True:
            seen = self._snapshots.version
            with suppress(KernelRefused):
                await self.save()
            await self._snapshots.newer(seen)

    async def save(self) -> None:
        """Save the Ledger to disk if it has changed; only one write at a time.

        :raises KernelRefused: if it cannot be written.
        """
        async with self._saving:
            now = self._snapshots.now.ledger
            if now != self._saved:
                await threads.call(SECTION.save, self._root.prefix, now)
                self._saved = now

    async def save_before(self, action: Action) -> None:
        """Save the facts that the host will no longer show after this action.

        The autoprobe switch of a PF is read now, because the last scan may be old.

        :raises KernelRefused: if the record cannot be written; then the action must not be made.
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
        """Remove the entry of a driver that was restored, or of a vGPU type that was cleared or not set.

        If the kernel refuses a vGPU type, an earlier type that a late write has set stays recorded. The
        former driver of a PCI function that could not be bound also stays recorded, because its
        ``driver_override`` may still be set. ``run`` saves the result.
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
        """Replace the manual requests; ``run`` saves them."""
        self._publish(self._snapshots.now.ledger._replace(asked=asked))

    def _publish(self, ledger: Ledger) -> None:
        self._snapshots.publish(replace(self._snapshots.now, ledger=ledger))
