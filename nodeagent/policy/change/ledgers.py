# SPDX-License-Identifier: Apache-2.0
"""What a scan of the host adds to the Ledger, and what it ends. Pure."""

from __future__ import annotations

from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import vgpu_key
from nodeagent.model.ledger import Ledger
from nodeagent.model.snapshot import Names


def learned(ledger: Ledger, host: Host, names: Names) -> Ledger:
    """The ledger with what the host shows, and without VFs that are gone: new ones are nobody's yet.

    ``names`` has names that no VF lists, by ``vgpu_key``. The same object if there is nothing new.
    """
    vfs = [function for function in host.functions.values() if function.vgpu]
    present = {function.vgpu_type for function in vfs if function.vgpu_type is not None}
    called = {type_id: names[vgpu_key(type_id)] for type_id in sorted(present) if vgpu_key(type_id) in names}
    called.update(pair for function in vfs for pair in function.vgpu_types)
    listed = dict(ledger.listed)
    listed.update((vf.address, _joined(ledger, vf)) for vf in vfs if vf.vgpu_types)
    newer = Ledger(
        {vf: type_id for vf, type_id in ledger.types.items() if vf in host.functions},
        {**ledger.names, **called},
        {vf: type_ids for vf, type_ids in listed.items() if vf in host.functions},
    )
    return ledger if newer == ledger else newer


def _joined(ledger: Ledger, vf: PciFunction) -> tuple[str, ...]:
    now = (type_id for type_id, _ in vf.vgpu_types)
    return tuple(dict.fromkeys((*ledger.listed.get(vf.address, ()), *now)))
