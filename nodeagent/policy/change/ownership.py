# SPDX-License-Identifier: Apache-2.0
"""The owner of an mdev, by its UUID, and of a vGPU on a VF, by the Ledger. Pure.

The UUID of instance number n of a type on a parent is the uuid5 of "machine-id/parent/type" in a namespace of
nodeagent, with n in its last four hexadecimal digits. A hash therefore shows whether nodeagent created an
mdev, without a state file; the result is the same after every boot. All others are foreign. A vGPU on a VF
has no UUID, so the Ledger records the types that a VF has listed and the type that nodeagent has set.
"""

from __future__ import annotations

import uuid
from collections.abc import Set

from nodeagent.model.change import Ledger
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress, vgpu_key
from nodeagent.model.snapshot import Names

NAMESPACE = uuid.UUID("5c3f4a0e-7d0b-5a53-9a67-6e6f64656167")
INDEXES = 0x10000
_TAIL = 4


def update_ledger(ledger: Ledger, host: Host, names: Names, coming: Set[str] = frozenset()) -> Ledger:
    """The Ledger updated from the host: types and names that VFs list are added, VFs that have left the host
    are removed.

    The vGPU on a VF no longer counts as created by nodeagent if another program has cleared or changed the
    type. ``coming``: VFs whose type is being set, and that may not show it yet. ``names`` has names that no
    VF lists, by ``vgpu_key``. If nothing has changed, the same Ledger object is returned.
    """
    vfs = [function for function in host.functions.values() if function.vgpu]
    present = {function.vgpu_type for function in vfs if function.vgpu_type is not None}
    called = {type_id: names[vgpu_key(type_id)] for type_id in sorted(present) if vgpu_key(type_id) in names}
    called.update(pair for function in vfs for pair in function.vgpu_types)
    listed = dict(ledger.listed)
    listed.update((vf.address, _join_types(ledger, vf)) for vf in vfs if vf.vgpu_types)
    newer = ledger._replace(
        types={
            vf: type_id for vf, type_id in ledger.types.items() if vf in coming or _is_kept(vf, type_id, host)
        },
        names={**ledger.names, **called},
        listed={vf: type_ids for vf, type_ids in listed.items() if vf in host.functions},
        drivers={address: driver for address, driver in ledger.drivers.items() if address in host.functions},
        unprobed=ledger.unprobed.intersection(host.functions),
    )
    return ledger if newer == ledger else newer


def _is_kept(vf: str, type_id: str, host: Host) -> bool:
    """False if the VF has left the host, or has no vGPU type or another one than recorded."""
    function = host.functions.get(PciAddress(vf))
    return function is not None and (not function.vgpu or function.vgpu_type == type_id)


def _join_types(ledger: Ledger, vf: PciFunction) -> tuple[str, ...]:
    now = (type_id for type_id, _ in vf.vgpu_types)
    return tuple(dict.fromkeys((*ledger.listed.get(vf.address, ()), *now)))


def build_uuid(machine_id: str, parent: str, type_id: str, index: int) -> str:
    """The UUID of an instance; ``index`` counts from 0 to 65535."""
    return f"{_stem(machine_id, parent, type_id)}{index:04x}"


def is_own_uuid(machine_id: str, parent: str, type_id: str, instance: str) -> bool:
    """True if nodeagent on this node created the UUID for an instance of this type on this parent."""
    # uuidgen makes version 4: checking the version spares the hash of nearly every foreign instance
    return instance[14:15] == "5" and instance[:-_TAIL] == _stem(machine_id, parent, type_id)


def _stem(machine_id: str, parent: str, type_id: str) -> str:
    return str(uuid.uuid5(NAMESPACE, f"{machine_id}/{parent}/{type_id}"))[:-_TAIL]
