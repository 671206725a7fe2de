# SPDX-License-Identifier: Apache-2.0
"""Which resources other texts of names would rename, and which of them keep their name. Pure.

Pods, and the KubeVirt CR, ask by the name. So it does not change while a pod holds a device by it, nor while
nobody tells who holds what. Only what discovery names counts: a rule has the name that a person gave it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nodeagent.model.host import HostDevice, PciFunction
from nodeagent.model.ids import ResourceName, vgpu_key
from nodeagent.model.snapshot import Names, Snapshot
from nodeagent.model.status import Rename
from nodeagent.policy import groups
from nodeagent.policy.offer import matches

Texts = Mapping[str, str | None]
"""As Names, but what has no name is known, too: it is None."""


class Renames(NamedTuple):
    """The names that are in force from now on, what changes with them, and what does not for now."""

    names: Names
    changed: tuple[Rename, ...]
    kept: tuple[Rename, ...]


def decide(snapshot: Snapshot, fresh: Texts) -> Renames:
    """What becomes of the names of ``snapshot`` where other texts, ``fresh``, are found for the same keys."""
    wanted = _with(snapshot.names, fresh)
    held = {holder.resource for _, holder in snapshot.held()}
    keep: set[str] = set()
    for host_device, rename in _renamed(snapshot, snapshot.names, wanted):
        if not snapshot.allocations.answered or rename.old in held:
            keep |= _keys(host_device)
    names = _with(snapshot.names, {key: text for key, text in fresh.items() if key not in keep})
    changed = (rename for _, rename in _renamed(snapshot, snapshot.names, names))
    kept = (rename for _, rename in _renamed(snapshot, names, wanted))
    return Renames(names, tuple(dict.fromkeys(changed)), tuple(dict.fromkeys(kept)))


def _with(names: Names, texts: Texts) -> Names:
    both = {**names, **texts}
    return {key: text for key, text in both.items() if text is not None}


def _renamed(snapshot: Snapshot, old: Names, new: Names) -> Iterator[tuple[HostDevice, Rename]]:
    for host_device in snapshot.host.devices():
        before, now = (_discovered(host_device, snapshot, names) for names in (old, new))
        if before is not None and now is not None and before != now:
            alias = f"{matches.unaliased_name(host_device, snapshot.desired, new)}: {before}"
            yield host_device, Rename(before, now, alias)


def _discovered(host_device: HostDevice, snapshot: Snapshot, names: Names) -> ResourceName | None:
    """The name of its resource, if that is discovery's."""
    group = snapshot.host.groups.get(host_device.group) if host_device.group is not None else None
    match = matches.match_of(host_device, group, snapshot.desired, names)
    if match is None or match.unnamed:
        return None
    name = matches.discovered_name(host_device, snapshot.desired, names)
    return name if name == match.resource else None


def _keys(host_device: HostDevice) -> set[str]:
    """The keys of all texts that its name is made of."""
    keys = {host_device.vendor or ""}
    if isinstance(host_device, PciFunction):
        keys |= {f"{host_device.vendor}:{host_device.device}", vgpu_key(groups.vgpu_of(host_device) or "")}
    return keys
