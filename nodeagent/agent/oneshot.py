# SPDX-License-Identifier: Apache-2.0
"""One look at a node without a daemon: for ``scan``, ``explain`` and ``plan``. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import anyio

from nodeagent.agent.changing import ledger
from nodeagent.base import jsonsocket, threads
from nodeagent.config import Settings
from nodeagent.kernel import pciids
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import hints
from nodeagent.kernel.scan.runner import ScanRunner
from nodeagent.kernel.wakes import Wakes
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.desired import Desired
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress, ResourceName, vgpu_key
from nodeagent.model.ledger import Ledger
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import card_states
from nodeagent.policy.offer import matches, turn
from nodeagent.policy.offer.matches import Match
from nodeagent.policy.offer.turn import Decision

DEADLINE = 2.0  # seconds that one device may take to be read
HINTS_LIMIT = 1.0  # seconds for one device's hints


async def inspect(root: Root, settings: Settings, saved: Host | None = None) -> Decision:
    """Decide as the daemon would, from a saved host or a look at the present one.

    Who holds what, and what stays listed because it was offered, is known only if a daemon runs here.
    Raises KernelRefused if nothing can be read.
    """
    node_paths = settings.desired.node_paths
    host = saved or await ScanRunner(root, Wakes(), deadline=DEADLINE).scan(None, Host(), node_paths, {})
    names = await threads.call(_names, root, host)
    told = {} if saved is not None else await threads.call(_told, root.path(settings.status_socket))
    snapshot = Snapshot(
        host,
        settings.desired,
        names,
        Allocations(
            _holders(told),
            Knowledge.COMPLETE if told.get("kubelet", {}).get("holdersKnown") is True else Knowledge.UNKNOWN,
        ),
    )
    return turn.first(snapshot, _listed(told, host, settings.desired))


async def with_hints(root: Root, decision: Decision, address: PciAddress) -> Decision:
    """The same outcome, with the costly facts of one function read in addition."""
    host = decision.snapshot.host
    function = host.functions.get(address)
    if function is None:
        return decision
    with anyio.move_on_after(HINTS_LIMIT):
        function = replace(function, hints=await threads.call(hints.read, root, address))
    snapshot = replace(decision.snapshot, host=replace(host, functions={**host.functions, address: function}))
    return turn.first(snapshot, decision.matched)


def remembered(root: Root) -> Ledger:
    """What the daemon of this node remembers of vGPU types."""
    return ledger.read(root.path(ledger.PATH))


def to_plan(
    seen: Snapshot, machine_id: str, labels: Iterable[tuple[str, str]], known: Ledger | None = None
) -> card_states.Basis:
    """The same facts, as far as mdevs, vGPUs and VFs are planned from them.

    What processes have open is not looked at: a step that the daemon would put off may be among the plan's.
    """
    known = ledger.learned(known or Ledger(), seen.host, seen.names)
    return card_states.Basis(
        machine_id,
        labels=dict(labels),
        holders=seen.allocations.holders,
        holders_known=seen.allocations.complete,
        made=known.types,
        vgpu_names=known.names,
        vgpu_listed=known.listed,
    )


def _names(root: Root, host: Host) -> dict[str, str]:
    ids = (
        (function.vendor, function.device)
        for function in host.functions.values()
        if function.vendor and function.device
    )
    types = {vgpu_key(number): name for number, name in ledger.named(root, host).items() if name}
    return {**pciids.names(root, ids), **types}


def _told(path: str) -> Mapping[str, Any]:
    """What a running daemon tells; {} if there is none."""
    try:
        document = jsonsocket.ask(path)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _listed(document: Mapping[str, Any], host: Host, desired: Desired) -> dict[str, Match]:
    """The matches behind the devices that the daemon lists."""
    found: dict[str, Match] = {}
    for resource in document.get("resources", ()):
        present = (host.device(device["id"]) for device in resource["devices"])
        name = ResourceName(resource["name"])
        found |= {each.id: matches.listed(name, each, desired) for each in present if each is not None}
    return found


def _holders(document: Mapping[str, Any]) -> dict[str, Holder]:
    found: dict[str, Holder] = {}
    for device_id, held in document.get("holders", {}).items():
        namespace, _, pod = str(held.get("pod", "")).rpartition("/")
        found[device_id] = Holder(namespace, pod, ResourceName(str(held.get("resource", ""))))
    return found
