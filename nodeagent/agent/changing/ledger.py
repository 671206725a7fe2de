# SPDX-License-Identifier: Apache-2.0
"""Keeps what shows which devices are ours: the Ledger, published and on disk, and the machine id.

The one writer of the Snapshot's ``ledger`` and ``machine_id``. A VF does not say who set its type, and
with a type it lists no others: that is in a small file below /run, so it ends with the boot, as the types
do. It is written before the type is, since a crash between the two must not make ours a foreign one; a
line too many counts only while the VF has that very type, and goes when the kernel refuses it. What is
not ours any more leaves the file soon after. A file that cannot be read is an empty one: then what is
there stays, and a damaged one is told. The own drivers of what is bound, and what was asked for by hand, have
a file of their own (``drivers_record``), kept alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial

import anyio

from nodeagent.agent import drivers_record
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.files import StateFile
from nodeagent.base.latest import Latest
from nodeagent.kernel.apply import vfs
from nodeagent.kernel.machine_id import read_machine_id
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import vgpus
from nodeagent.model import plain
from nodeagent.model.action import Action, ActionKind
from nodeagent.model.host import Host
from nodeagent.model.ledger import Asked, Ledger
from nodeagent.policy.change import ownership

PATH = "/run/nodeagent/vgpu-types.json"


FILE = StateFile(
    Ledger(),
    partial(plain.load, Ledger),
    plain.dump,
    "without it nodeagent would not know its own vGPUs again",
    log.VGPU_RECORD_BROKEN,
    mode=0o644,
)


def remembered(root: Root) -> Ledger:
    """All that is on record since boot. Blocks.

    :raises KernelRefused: if nothing can be read at present.
    """
    drivers = drivers_record.FILE.peek(root.path(drivers_record.PATH))
    return FILE.peek(root.path(PATH))._replace(**drivers._asdict())


def _load(root: Root) -> Ledger:
    drivers = drivers_record.FILE.load(root.path(drivers_record.PATH))
    return FILE.load(root.path(PATH))._replace(**drivers._asdict())


def of_vgpus(ledger: Ledger) -> Ledger:
    """The part of a Ledger that is in the file of vGPU types."""
    return ledger._replace(**drivers_record.Record()._asdict())


def named(root: Root, host: Host) -> dict[str, str]:
    """Number → name of the vGPU types on the host, also as VFs once listed it; "" if it is not known."""
    known = FILE.peek(root.path(PATH)).names
    return {number: name or known.get(number, "") for number, name in vgpus.named(root, host).items()}


class LedgerKeeper:
    """Reads, publishes and writes the Ledger."""

    name = "ledger"

    def __init__(self, root: Root, snapshots: Snapshots) -> None:
        self._root = root
        self._snapshots = snapshots
        self._saved = Ledger()
        self._saving = anyio.Lock()
        self._before: dict[str, str] = {}  # VF → the type on record before the one that is being set
        self._setting: set[str] = set()  # VFs whose type is on record before it is set
        self.opened: Latest[None] = Latest(None)  # touched when all on record was read

    async def open(self) -> None:
        """Read what is on record since boot, and which machine this is."""
        self._setting.clear()
        machine = await threads.call(read_machine_id, self._root)
        self._saved = await threads.call(_load, self._root)
        self._snapshots.publish(replace(self._snapshots.now, ledger=self._saved, machine_id=machine))
        self.opened.touch()

    def learn(self, busy: Set[str]) -> None:
        """Remember what the Host shows of vGPU types; not yet of ``busy`` VFs, for it may be old."""
        now = self._snapshots.now
        self._publish(ownership.learned(now.ledger, now.host, now.names, busy | self._setting))

    async def run(self) -> None:
        """Put on disk what has changed, for ever; a refusal matters when a type is to be set."""
        while True:
            seen = self._snapshots.version
            with suppress(KernelRefused):
                await self.save()
            await self._snapshots.newer(seen)

    async def save(self) -> None:
        """Put the Ledger on disk if it has changed; one writer of the file at a time.

        :raises KernelRefused: if it cannot be written.
        """
        async with self._saving:
            now = self._snapshots.now.ledger
            if (record := drivers_record.of(now)) != drivers_record.of(self._saved):
                path = self._root.path(drivers_record.PATH)
                await threads.call(drivers_record.FILE.save, path, record)
                self._saved = self._saved._replace(**record._asdict())
            if now != self._saved:
                await threads.call(FILE.save, self._root.path(PATH), of_vgpus(now))
                self._saved = now

    async def begin(self, action: Action) -> None:
        """Before an action: a vGPU type is on disk before it is set, a driver before it is taken away.

        So is a PF before its switch is changed; as it is now, since the last scan may be old.

        :raises KernelRefused: if that cannot be written; then the action must not be taken.
        """
        if action.kind is ActionKind.SET_VGPU_TYPE:
            vf, types = action.address, self._snapshots.now.ledger.types
            if vf in types:
                self._before[vf] = types[vf]
            self._setting.add(vf)
            self._set_types({**types, vf: action.type_id or ""})
            await self.save()
        if action.kind is ActionKind.BIND_DRIVERS:
            own = {move.address: move.back or "" for move in action.moves}
            self._set_drivers({**self._snapshots.now.ledger.drivers, **own})
            await self.save()
        if action.kind is ActionKind.SET_NUM_VFS and action.unprobed:
            if not await threads.call(vfs.probed, self._root, action.address):
                return
            self._set_unprobed(self._snapshots.now.ledger.unprobed | {action.address})
            await self.save()

    def end(self, action: Action, *, made: bool) -> None:
        """After it: a VF that was cleared, or not set, has no type of ours; the file follows.

        A type that it was given before, by a late write, stays on record when another is refused. So does the
        driver of what could not be bound, as its override may not have been taken back.
        """
        if action.kind is ActionKind.RESTORE_DRIVERS and made:
            drivers = self._snapshots.now.ledger.drivers
            left = {each: driver for each, driver in drivers.items() if each not in action.targets}
            self._set_drivers(left)
        if action.kind is ActionKind.RESTORE_AUTOPROBE and made:
            self._set_unprobed(self._snapshots.now.ledger.unprobed - {action.address})
        before = self._before.pop(action.device, None)
        self._setting.discard(action.device)
        if action.kind is not (ActionKind.CLEAR_VGPU_TYPE if made else ActionKind.SET_VGPU_TYPE):
            return
        types = {
            vf: type_id for vf, type_id in self._snapshots.now.ledger.types.items() if vf != action.address
        }
        if before is not None and not made:
            types[action.address] = before
        self._set_types(types)

    def ask(self, asked: Mapping[str, Asked]) -> None:
        """From now on this is what was asked for by hand; the file follows."""
        self._publish(self._snapshots.now.ledger._replace(asked=asked))

    def _set_types(self, types: dict[str, str]) -> None:
        self._publish(self._snapshots.now.ledger._replace(types=types))

    def _set_drivers(self, drivers: dict[str, str]) -> None:
        self._publish(self._snapshots.now.ledger._replace(drivers=drivers))

    def _set_unprobed(self, physical: frozenset[str]) -> None:
        self._publish(self._snapshots.now.ledger._replace(unprobed=physical))

    def _publish(self, known: Ledger) -> None:
        self._snapshots.publish(replace(self._snapshots.now, ledger=known))
