# SPDX-License-Identifier: Apache-2.0
"""Builds one Snapshot of a node without a daemon, for ``scan``, ``explain`` and ``plan``. Changes nothing.

Only a daemon knows which devices are in use or open; this Snapshot does not. A saved host is used without the
files of this host, which say nothing about the devices of another host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import anyio

from nodeagent.agent.changing import ledger
from nodeagent.base import threads
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import aer, pci_ids
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import devnodes, host_use, usb
from nodeagent.kernel.scan.mdevs import read_machine_id
from nodeagent.kernel.scan.scanner import Scanner
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.change import Ledger
from nodeagent.model.host import Host, UsbDevice
from nodeagent.model.ids import PciAddress, vgpu_key
from nodeagent.model.nodes import CdiFile, cdi_nodes
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Spec
from nodeagent.policy.change import ownership


async def snapshot(root: Root, spec: Spec, timeouts: Timeouts, saved: Host | None = None) -> Snapshot:
    """Return the Snapshot of a saved host, or scan this host and return its Snapshot.

    :raises KernelRefused: if nothing can be read.
    """
    specs = await _specs(root, spec, timeouts) if saved is None else {}
    nodes = (*spec.node_paths, *cdi_nodes(specs))
    host = saved or await _scanned(root, nodes, specs, timeouts)
    names = await threads.call(_names, root, host, spec)
    if saved is None:
        return await threads.call(with_memory, root, Snapshot(host, spec, names))
    return Snapshot(
        host,
        spec,
        names,
        ledger=ownership.update_ledger(Ledger(), host, names),
        machine_id=await threads.call(read_machine_id, root),
    )


async def _scanned(
    root: Root, nodes: Sequence[str], specs: Mapping[str, CdiFile], timeouts: Timeouts
) -> Host:
    runner = Scanner(root, ScanRequests(), timeouts, deadline=timeouts.device_read_once)
    return await runner.scan(None, Host(), nodes, {}, specs)


async def _specs(root: Root, spec: Spec, timeouts: Timeouts) -> Mapping[str, CdiFile]:
    if not spec.cdi_kinds:
        return {}
    from nodeagent.agent import cdi_specs  # here: few nodes have rules for CDI devices

    return await cdi_specs.first(root, spec, timeouts.cdi_directory_read)


async def with_specs(root: Root, before: Snapshot, spec: Spec, timeouts: Timeouts) -> Snapshot:
    """Add the CDI files that the rules of this Spec name to the Host of the Snapshot."""
    specs = await _specs(root, spec, timeouts)
    if not specs:
        return before
    known = replace(before, host=replace(before.host, cdi={**before.host.cdi, **specs}))
    return await with_nodes(root, known, cdi_nodes(specs))


def with_memory(root: Root, before: Snapshot) -> Snapshot:
    """Add this host's machine id and Ledger to the Snapshot, if the Snapshot has none. Blocks on files."""
    known = before.ledger if before.ledger != Ledger() else ledger.SECTION.peek(root.prefix)
    return replace(
        before,
        ledger=ownership.update_ledger(known, before.host, before.names),
        machine_id=before.machine_id or read_machine_id(root),
    )


async def with_names(root: Root, before: Snapshot) -> Snapshot:
    """Add the names of all devices to the Snapshot."""
    names = await threads.call(_names, root, before.host, before.spec)
    return replace(before, names={**names, **before.names})


async def with_nodes(root: Root, before: Snapshot, paths: Iterable[str]) -> Snapshot:
    """Add these device nodes to the Host of the Snapshot, as far as they exist."""
    there = await threads.call(devnodes.read, root, tuple(paths))
    nodes, dev_nodes = before.host.nodes.union(there), {**before.host.dev_nodes, **there}
    return replace(before, host=replace(before.host, nodes=nodes, dev_nodes=dev_nodes))


async def with_usb(root: Root, before: Snapshot) -> Snapshot:
    """Add the host's USB devices to the Snapshot: a daemon reads them only if a rule matches some."""
    if before.host.usb:
        return before
    found = await threads.call(_usb, root)
    return replace(before, host=replace(before.host, usb=found)) if found else before


async def with_hints(root: Root, before: Snapshot, address: PciAddress, timeouts: Timeouts) -> Snapshot:
    """Add facts of one PCI function that take long to read to the Snapshot, as far as they can be read in
    time.

    The name of the PCI function is one of these facts: a daemon looks up only the names of functions that may
    be offered.
    """
    function = before.host.functions.get(address)
    if function is None:
        return before
    names = await threads.call(_names, root, Host({address: function}), before.spec)
    with anyio.move_on_after(timeouts.device_hints_read):
        function = function._replace(hints=await threads.call(aer.read_hints, root, address))
    host = replace(before.host, functions={**before.host.functions, address: function})
    known = replace(before, host=host, names={**names, **before.names})
    members = [each.address for each in host.members(function.group)]
    return await with_close_uses(root, known, members or [address], timeouts)


async def with_close_uses(
    root: Root, before: Snapshot, functions: Iterable[str], timeouts: Timeouts
) -> Snapshot:
    """Add the host's uses of these functions to the Snapshot, as the guards find them right before a bind.

    Network addresses, mounts and open files change without an event. The host's uses are read within a time
    limit.
    """
    known = before.host.functions
    wanted = [address for address in map(PciAddress, functions) if address in known and known[address].usable]
    if not wanted:
        return before
    with anyio.move_on_after(timeouts.device_hints_read):
        uses = await threads.call(host_use.find_uses, root, wanted, closely=True)
        return replace(before, host=before.host.with_uses(uses, before.host))
    return before


def _usb(root: Root) -> Mapping[str, UsbDevice]:
    read = {name: usb.device(root, name) for name in usb.list_names(root)}
    found = usb.assign_ids(read, {}, True)
    return {device_id: each for device_id, each in sorted(found.items()) if each is not None}


def _names(root: Root, host: Host, spec: Spec) -> Mapping[str, str]:
    ids = (
        (function.vendor, function.device)
        for function in host.functions.values()
        if function.vendor and function.device
    )
    types = {vgpu_key(number): name for number, name in ledger.named(root, host).items() if name}
    return {**pci_ids.names(root, ids, spec.discovery.pci_ids), **types}
