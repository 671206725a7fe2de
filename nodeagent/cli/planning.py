# SPDX-License-Identifier: Apache-2.0
"""The facts that ``nodeagent plan`` reads beside a Snapshot: the machine id, and the host's uses of functions
that are about to be bound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from nodeagent.agent import oneshot
from nodeagent.base.errors import ConfigError
from nodeagent.cli import shell
from nodeagent.kernel.machine_id import parse_machine_id
from nodeagent.policy.change import bindings

if TYPE_CHECKING:
    import argparse

    from nodeagent.model.snapshot import Snapshot

MACHINE_ID = "/etc/machine-id"
_UNTOLD = "which mdevs are ours cannot be told"


def complete(snapshot: Snapshot, options: argparse.Namespace) -> tuple[Snapshot, str]:
    """The Snapshot with the machine id of the host that is planned for; and an error about that, or "".

    A daemon that changes nothing knows neither that nor the ledger: then they are those of this machine.
    Functions that a rule wants on a VFIO driver are looked at as closely as right before the write.

    :raises ConfigError: if the id given is none, or if none is known and mdevs are to be planned.
    """
    if options.host is None:
        snapshot = oneshot.with_memory(shell.root_of(options), snapshot)
    given = options.machine_id
    machine_id = snapshot.machine_id if given is None else _given(given)
    unknown = "" if machine_id else _unknown(options)
    if unknown and _must_be_known(snapshot):
        raise ConfigError(unknown, _to_know(options))
    snapshot = replace(snapshot, machine_id=machine_id)
    if options.host is None:
        functions = bindings.find_members(bindings.plan(snapshot), snapshot.host)
        root = shell.root_of(options)
        snapshot = anyio.run(oneshot.with_close_uses, root, snapshot, functions, options.timeouts)
    return snapshot, unknown


def _unknown(options: argparse.Namespace) -> str:
    """That nobody knows whose machine it is."""
    if options.host is not None:
        return f"a saved host does not have its {MACHINE_ID}: {_UNTOLD}"
    return f"{shell.root_of(options).path(MACHINE_ID)} is empty or missing: {_UNTOLD}"


def _to_know(options: argparse.Namespace) -> str:
    """Of this machine it can be made; that of another host is to be asked there."""
    if options.host is None and shell.root_of(options).is_host:
        return "make it with: sudo systemd-machine-id-setup; or give --machine-id"
    return f"give what stands in {MACHINE_ID} of that host with --machine-id"


def _given(text: str) -> str:
    if machine_id := parse_machine_id(text):
        return machine_id
    raise ConfigError(
        f'--machine-id: "{text}" is no machine id',
        f"give the 32 hexadecimal digits that stand in {MACHINE_ID} of that host",
    )


def _must_be_known(snapshot: Snapshot) -> bool:
    """False where only VFs or drivers are planned, which go without."""
    spec, ledger = snapshot.spec, snapshot.ledger
    without = spec.sriov or spec.passthrough or ledger.drivers or ledger.asked
    return spec.mdevs.manage or not without
