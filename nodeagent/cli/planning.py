# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent plan`` adds to a Snapshot that lacks it: whose machine it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.agent import oneshot
from nodeagent.base.errors import ConfigError
from nodeagent.cli import asking
from nodeagent.kernel import identity

if TYPE_CHECKING:
    import argparse

    from nodeagent.model.desired import Desired
    from nodeagent.model.snapshot import Snapshot

UNKNOWN = "/etc/machine-id is empty or missing: which mdevs are ours cannot be told"


def complete(snapshot: Snapshot, options: argparse.Namespace) -> tuple[Snapshot, str]:
    """The Snapshot with the machine id of the host that is planned for; and what is wrong with that, or "".

    A daemon that changes nothing knows neither that nor the ledger: then they are those of this machine.

    :raises ConfigError: if the id given is none, or if none is known and mdevs are to be planned.
    """
    if options.host is None:
        snapshot = oneshot.with_memory(asking.root_of(options), snapshot)
    given = options.machine_id
    machine_id = snapshot.machine_id if given is None else _given(given)
    if not machine_id and _must_be_known(snapshot.desired):
        raise ConfigError(UNKNOWN, "make it with systemd-machine-id-setup, or give --machine-id")
    return replace(snapshot, machine_id=machine_id), "" if machine_id else UNKNOWN


def _given(text: str) -> str:
    if machine_id := identity.written(text):
        return machine_id
    raise ConfigError(
        f'--machine-id: "{text}" is no machine id',
        "give the 32 hexadecimal digits that stand in /etc/machine-id of that host",
    )


def _must_be_known(desired: Desired) -> bool:
    """False where only VFs or drivers are planned, which go without."""
    return desired.mdevs.manage or not (desired.sriov or desired.passthrough)
