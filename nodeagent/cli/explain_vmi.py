# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain vmi``: whether this node can pass the requested devices to a VM of a file or the
cluster.

The KubeVirt CR says which devices KubeVirt permits. The command uses the CR of ``--cr``; otherwise the CR of
the API server, if the VM is read from that server; otherwise the CR that the daemon uses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.agent.cluster import state
from nodeagent.base.errors import ConfigError
from nodeagent.cli import args, daemon_client, output
from nodeagent.cluster import kubevirt, vmi
from nodeagent.cluster.credentials import is_followed
from nodeagent.config import manifests
from nodeagent.model.kubevirt import UsedCR
from nodeagent.policy.explain import machines as judging
from nodeagent.policy.explain.machines import Availability, ResourceRequest, VMExplanation
from nodeagent.policy.offer import turn

if TYPE_CHECKING:
    import argparse

    from nodeagent.model.kubevirt import KubeVirtCR, VirtualMachine

_NAME = r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?"
_IN_CLUSTER = re.compile(rf"({_NAME})/({_NAME})")
_FILES = (".yaml", ".yml", ".json")
_VERDICTS = {
    Availability.NOW: "available on this node",
    Availability.LATER: "available on this node after another pod releases devices",
    Availability.OTHERS: "provided by another device plugin",
    Availability.NEVER: "not available on this node",
}
_SOURCES = {
    "file": "from the file of --cr",
    "api-server": "from the API server, now",
    "daemon": "from the daemon, in force",
    "record": "from the record of a daemon that has ended",
}
_UNLISTED = "these credentials may not list KubeVirt CRs; the daemon's CR is used, if any"


class _VM(NamedTuple):
    """The VM, the KubeVirt CRs of its cluster (None: not read), and a message about the CRs."""

    vm: VirtualMachine
    crs: Mapping[str, Any] | None = None
    message: str = ""


def run(options: argparse.Namespace) -> int:
    """Print whether this node can pass the requested devices to the VM.

    :raises ConfigError: if a file is invalid.
    :raises NodeagentError: if the cluster has no such VM, or does not answer.
    """
    read = _read_vm(options)
    used = _choose_cr(options, read.crs)
    basis, first_line = daemon_client.read_basis(options, used.cr)
    found = judging.explain_vm(read.vm, used, turn.decide_first(basis.snapshot, basis.matched))
    return output.emit(options, "VMExplanation", found, lambda: text(found), first_line, read.message)


def _read_vm(options: argparse.Namespace) -> _VM:
    """Read the VM from a file or from the cluster."""
    place = options.machine
    if place is None:
        raise ConfigError(
            "explain vmi: no VM is given",
            "give a file or a name: nodeagent explain vmi FILE, or NAMESPACE/NAME",
        )
    named = _IN_CLUSTER.fullmatch(place)
    if named is None or place.endswith(_FILES) or os.path.lexists(place):
        return _VM(_parse_one(manifests.read(place), place))
    from nodeagent.cli import fetch_vmi  # here: a file needs no client of the API server

    vm, crs = fetch_vmi.fetch(options, *named.groups())
    unlisted = _UNLISTED if crs is None and options.cr is None else ""
    return _VM(_parse_one([vm], place), crs, unlisted)


def _parse_one(documents: Iterable[Any], place: str) -> VirtualMachine:
    found = [each for each in map(vmi.parse, documents) if each is not None]
    if len(found) != 1:
        raise ConfigError(
            f"{place}: it contains {len(found) or 'no'} virtual machine{'s' * (len(found) > 1)}",
            "give one object of kind VirtualMachineInstance or VirtualMachine",
        )
    return found[0]


def _choose_cr(options: argparse.Namespace, crs: Mapping[str, Any] | None) -> UsedCR:
    """Choose the KubeVirt CR to use. An invalid KubeVirt CR of the cluster is in force on no node."""
    if options.cr is not None:
        return UsedCR(_read_cr(options.cr), "file")
    chosen = kubevirt.chosen((crs or {}).values())
    cr = None if chosen is None else kubevirt.cr(chosen)
    if cr is not None and cr.fault is None:
        return UsedCR(cr, "api-server")
    return UsedCR() if args.is_saved(options) else _cr_of_daemon(options)


def _cr_of_daemon(options: argparse.Namespace) -> UsedCR:
    """The CR that the daemon uses, or would use, from its record, which only root can read."""
    root = args.find_root(options)
    cr = state.SECTION.peek(root.prefix).config.kubevirt
    status = daemon_client.find_status(options)
    if status is None:
        follows = is_followed(args.load_settings(options).configuration.following)
        return UsedCR(cr, "record") if cr is not None and follows else UsedCR()
    used = UsedCR(cr, "daemon")
    return used if used.cr is not None and used.name == _name_in_force(status) else UsedCR()


def _name_in_force(status: Any) -> str:
    try:
        return str(status["cluster"]["kubevirt"])
    except (LookupError, TypeError):
        return ""


def _read_cr(path: str) -> KubeVirtCR:
    documents = manifests.read(path)
    chosen = documents[0] if len(documents) == 1 else kubevirt.chosen(documents)
    if chosen is None:
        raise ConfigError(
            f"{path}: it holds no deployed KubeVirt CR",
            "give one object of kind KubeVirt or HyperConverged",
        )
    cr = kubevirt.cr(chosen)
    if cr.fault is not None:
        raise ConfigError(f"{path}: {cr.fault.message}", cr.fault.hint)
    return cr


def text(found: VMExplanation) -> str:
    """The verdict for the VM, then the facts on which it depends, one per line."""
    requests = found.resources or found.availability is Availability.NEVER
    verdict = _VERDICTS[found.availability] if requests else "it requests no resource"
    name = "/".join(filter(None, (found.vm.namespace, found.vm.name))) or "(no name)"
    lines = [f"{found.vm.kind} {name}  {verdict}"]
    for request in found.resources:
        lines += ["", *_explain_request(request)]
    if found.cr is not None:
        named = f" {found.cr.name}" if found.cr.name else ""
        lines += ["", f"  cr      the KubeVirt CR{named}, {_SOURCES[found.cr.source]}"]
    if found.notes:
        lines += ["", *(f"  note    {note}" for note in found.notes)]
    return "\n".join(lines)


def _explain_request(request: ResourceRequest) -> Iterator[str]:
    yield f"  {request.count} x {request.resource}  {_VERDICTS[request.availability]}"
    yield f"    for     {', '.join(f'{device.list} {device.name}'.strip() for device in request.devices)}"
    yield from (f"    env     {key}={value}" for key, value in request.env.items())
    for key, words in (("nodes", request.nodes), ("cdi", request.cdi)):
        if words:
            yield f"    {key:<7} {' '.join(words)}"
    yield from (f"    why     {line}" for line in request.messages)
