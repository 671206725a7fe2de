# SPDX-License-Identifier: Apache-2.0
"""Definitions of mdevctl against a host: which can be met, and what is wrong with the others. Pure.

A definition names its parent and its type by themselves, so nothing else can stand in for them. One that
cannot be met is a problem, and takes nothing from its card.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.model.desired import MdevDefinition
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress


def met(defined: Sequence[MdevDefinition], host: Host, shunned: frozenset[str]) -> tuple[MdevDefinition, ...]:
    """Those that the host can meet, or has met: these come first. ``shunned`` are the excluded type ids."""
    good = (definition for definition in defined if _flaw(definition, host, shunned) is None)
    return tuple(sorted(good, key=lambda definition: definition.uuid not in host.mdevs))


def problems(defined: Sequence[MdevDefinition], host: Host, shunned: frozenset[str]) -> list[str]:
    """What is wrong with the others."""
    judged = ((definition, _flaw(definition, host, shunned)) for definition in defined)
    return [f"the definition {definition.uuid} {flaw}" for definition, flaw in judged if flaw is not None]


def _flaw(definition: MdevDefinition, host: Host, shunned: frozenset[str]) -> str | None:
    parent, type_id = definition.parent, definition.type_id
    mdev_types = host.mdev_parents.get(parent)
    if mdev_types is None:
        why = "offers no mediated devices" if PciAddress(parent) in host.functions else "is not on this node"
        return f"names the parent {parent}, which {why}"
    if all(mdev_type.type_id != type_id for mdev_type in mdev_types):
        return f"asks for {type_id}, which {parent} does not offer"
    if type_id in shunned:
        return f"asks for {type_id}, which is excluded"
    there = host.mdevs.get(definition.uuid)
    if there is None or there.type_id is None or (there.parent, there.type_id) == (parent, type_id):
        return None
    return f"asks for {type_id} on {parent}, and it exists as {there.type_id} on {there.parent}"
