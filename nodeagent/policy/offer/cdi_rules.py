# SPDX-License-Identifier: Apache-2.0
"""Resources of CDI devices: each CDI name is one Device, and is allocated by that name. Pure.

The first rule that matches a name gets it. CDI names with the same container edits are one device, which is
listed by the first name: a CDI file often has each GPU by number and by UUID. This module is loaded when
there is a rule for CDI devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from nodeagent.model.allocation import Grant
from nodeagent.model.host import Host
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.nodes import CdiEntry, DevNode, is_node_path
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule
from nodeagent.policy.offer import backing_devices

_ID_LIMIT = 63


def resource(rule: CdiRule, snapshot: Snapshot) -> Resource:
    """The resource of a rule; a Device is Healthy while its CDI file is valid and its device nodes exist."""
    host = snapshot.host
    devices = (
        Device(
            device_id(entry.name),
            _find_reason(entry, snapshot),
            backing_devices.find_numa(_find_nodes(entry, host), host),
        )
        for entry in _find_entries(rule, snapshot)
    )
    return Resource(ResourceName(rule.name), rule.kind, tuple(devices))


def device_id(name: str) -> DeviceId:
    """The qualified CDI name as a device id; a long name is cut, and ends in a hash of the whole name."""
    if len(name) <= _ID_LIMIT:
        return DeviceId(name)
    return DeviceId(f"{name[: _ID_LIMIT - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}")


def find_names(rule: CdiRule, snapshot: Snapshot) -> tuple[str, ...]:
    """The names of the CDI devices that the rule matches."""
    return tuple(entry.name for entry in _find_entries(rule, snapshot))


def has_node(rule: CdiRule, path: str, snapshot: Snapshot) -> bool:
    """True if a CDI device that the rule matches contains the device node with that path."""
    return any(path in entry.device.paths for entry in _find_entries(rule, snapshot))


def grant(rule: CdiRule, device_ids: Iterable[str], snapshot: Snapshot) -> Grant:
    """The CDI names for a container, in the order of the requested ids."""
    known = _by_id(rule, snapshot)
    return Grant(cdi=tuple(known[each].name for each in device_ids if each in known))


def find_sources(rule: CdiRule, device_ids: Iterable[str], snapshot: Snapshot) -> tuple[str, ...]:
    """The device nodes of these CDI devices, and the PCI addresses of the functions behind the nodes."""
    known, host = _by_id(rule, snapshot), snapshot.host
    chosen = [known[each] for each in device_ids if each in known]
    paths = (path for entry in chosen for path in entry.device.paths if is_node_path(path))
    functions = (
        each.address
        for entry in chosen
        for each in backing_devices.find_functions(_find_nodes(entry, host), host)
    )
    return tuple(dict.fromkeys((*paths, *functions)))


def find_nodes(rule: CdiRule, snapshot: Snapshot) -> dict[str, Sequence[DevNode]]:
    """Device id → the device nodes that the CDI file lists for the device."""
    return {each: _find_nodes(entry, snapshot.host) for each, entry in _by_id(rule, snapshot).items()}


def _by_id(rule: CdiRule, snapshot: Snapshot) -> dict[str, CdiEntry]:
    return {device_id(entry.name): entry for entry in _find_entries(rule, snapshot)}


def _find_entries(rule: CdiRule, snapshot: Snapshot) -> Iterator[CdiEntry]:
    earlier: list[CdiRule] = []
    for other in snapshot.spec.rules:
        if other.name == rule.name:
            break
        if isinstance(other, CdiRule) and other.spec_kind == rule.spec_kind:
            earlier.append(other)
    seen: set[str] = set()
    for entry in snapshot.host.cdi_entries.values():
        if not _is_match(rule, entry) or any(_is_match(each, entry) for each in earlier):
            continue
        if entry.device.paths and entry.device.edits in seen:
            continue
        seen.add(entry.device.edits)
        yield entry


def _is_match(rule: CdiRule, entry: CdiEntry) -> bool:
    if entry.file.kind != rule.spec_kind:
        return False
    name = entry.device.name
    excluded = any(fnmatchcase(name, each) for each in rule.exclude)
    return not excluded and any(fnmatchcase(name, each) for each in rule.names)


def _find_nodes(entry: CdiEntry, host: Host) -> list[DevNode]:
    return [host.dev_nodes[path] for path in entry.device.paths if path in host.dev_nodes]


def _find_reason(entry: CdiEntry, snapshot: Snapshot) -> Reason | None:
    file, host = entry.file, snapshot.host
    if file.fault:
        return Reason(
            ReasonCode.UNREADABLE,
            f"its CDI file {file.path} cannot be used: {file.fault}",
            "generate the file again with its tool; container runtimes reject it as well",
        )
    if entry.rivals:
        return Reason(
            ReasonCode.CDI_CONFLICT,
            f"{entry.name} is in {file.path} and in {', '.join(entry.rivals)}: runtimes reject both",
            "remove one of the files, or the name from it; /var/run/cdi takes precedence over /etc/cdi",
        )
    return _find_missing(entry, host) or backing_devices.find_reason(_find_nodes(entry, host), snapshot)


def _find_missing(entry: CdiEntry, host: Host) -> Reason | None:
    missing = [path for path in entry.device.nodes if path not in host.dev_nodes]
    if not missing:
        return None
    if not is_node_path(missing[0]):
        text = f"{entry.file.path} names {missing[0]}, which is not below /dev and is not read"
        return Reason(ReasonCode.NODE_MISSING, text, "configure its tool to use nodes below /dev")
    return Reason(
        ReasonCode.NODE_MISSING,
        f"{entry.file.path} names {', '.join(missing)}, which this host does not have",
        "load the driver that creates it, or generate the file again if the hardware has changed",
    )
