# SPDX-License-Identifier: Apache-2.0
"""Whose is an mdev: its id says so without a state file, the same after every boot. Pure.

The UUID of instance number n of a type on a parent is the uuid5 of "machine-id/parent/type" in a namespace
of nodeagent's own, with n in its last four hexadecimal digits. So one hash shows whether an instance is
ours, and the number can be read off. Anything else is foreign.
"""

from __future__ import annotations

import uuid

NAMESPACE = uuid.UUID("5c3f4a0e-7d0b-5a53-9a67-6e6f64656167")
INDEXES = 0x10000
_TAIL = 4


def uuid_of(machine_id: str, parent: str, type_id: str, index: int) -> str:
    """The UUID of an instance; ``index`` counts from 0 to 65535."""
    return f"{_stem(machine_id, parent, type_id)}{index:04x}"


def owns(machine_id: str, parent: str, type_id: str, instance: str) -> bool:
    """True if nodeagent on this machine gave the UUID to an instance of this type on this parent."""
    # uuidgen makes version 4: checking the version spares the hash of nearly every foreign instance
    return instance[14:15] == "5" and instance[:-_TAIL] == _stem(machine_id, parent, type_id)


def _stem(machine_id: str, parent: str, type_id: str) -> str:
    return str(uuid.uuid5(NAMESPACE, f"{machine_id}/{parent}/{type_id}"))[:-_TAIL]
