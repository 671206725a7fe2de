# SPDX-License-Identifier: Apache-2.0
"""Translates configurations of two other device plugins into rules, as plain data.

The sriov-network-device-plugin (``resourceList``; its README and pkg/types, 3.11): selectors mean the same
there and here: one of the values, all of the keys, one of the selectors, the first resource that fits. A
selector with a key that has no counterpart, or for drivers that serve containers, would match more than was
meant: it is left out, with a note.

squat's generic-device-plugin (``devices``; its README and pkg, 0.1): a group with patterns has as many
devices as all of its paths have matches, the first with the first; a path's ``limit`` says how often a match
may be used. Here one pattern leads, and the others go with it. A group that would pass more to a container
than before is left out, with a note.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nodeagent.model.nodes import is_pattern

_SRIOV_LIST = "resourceList"
_SRIOV_PREFIX = "intel.com"  # its own default, --resource-prefix
_CLASSES = {"netDevice": "02", "accelerator": "12"}
_KEYS = {"vendors": "vendors", "devices": "devices", "drivers": "drivers", "pciAddresses": "addresses"}
_MEANINGLESS = frozenset({"resourceName", "resourcePrefix", "deviceType", "selectors", "excludeTopology"})
_GENERIC_LIST = "devices"
_GENERIC_DOMAIN = "squat.ai"  # its own default, --domain
_MOUNT = "Mount"  # a type of path that is no device node

Rule = dict[str, Any]


class Translation(NamedTuple):
    """Rules as one would write them, and a line for each thing that could not be translated."""

    rules: tuple[Rule, ...]
    notes: tuple[str, ...]


def is_known(document: dict[str, Any]) -> bool:
    """Return True if this is a configuration of one of the two plugins."""
    return _SRIOV_LIST in document or _is_generic(document)


def translate(document: dict[str, Any]) -> Translation:
    """Return the rules of all resources, in the order written; anything that cannot be read is a note."""
    rules, notes = list[Rule](), list[str]()
    if _SRIOV_LIST in document:
        _translate_sriov(document, rules, notes)
    else:
        _translate_generic(document, rules, notes)
    return Translation(tuple(rules), tuple(notes))


def _is_generic(document: dict[str, Any]) -> bool:
    listed = document.get(_GENERIC_LIST)
    first = listed[0] if isinstance(listed, list) and listed else None
    return isinstance(first, dict) and isinstance(first.get("groups"), list)


def _translate_sriov(document: dict[str, Any], rules: list[Rule], notes: list[str]) -> None:
    listed = document.get(_SRIOV_LIST)
    for number, entry in enumerate(listed if isinstance(listed, list) else []):
        place = f"{_SRIOV_LIST}[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("resourceName"), str):
            notes.append(f"{place}: it has no resourceName")
            continue
        name = f"{entry.get('resourcePrefix') or _SRIOV_PREFIX}/{entry['resourceName']}"
        selectors = _selectors(entry, f"{place} ({name})", notes)
        if selectors:
            rules.append({"name": name, "pci": selectors})


def _selectors(entry: dict[str, Any], place: str, notes: list[str]) -> list[Rule]:
    kind = entry.get("deviceType") or "netDevice"
    if kind not in _CLASSES:
        notes.append(f"{place}: deviceType {kind} has no counterpart: only PCI functions are given away")
        return []
    lost = [key for key in entry if key not in _MEANINGLESS and entry[key]]
    notes += [f"{place}: {key} has no counterpart and is left out" for key in lost]
    if entry.get("excludeTopology"):
        notes.append(f"{place}: excludeTopology has no counterpart: NUMA nodes are told where they are known")
    given = entry.get("selectors")
    found = [_selector(each, kind, place, notes) for each in (given if isinstance(given, list) else [given])]
    return [selector for selector in found if selector is not None]


def _selector(given: Any, kind: str, place: str, notes: list[str]) -> Rule | None:
    if not isinstance(given, dict) or not any(given.values()):
        notes.append(f"{place}: no selectors, so there is nothing to take")
        return None
    lost = [key for key, value in given.items() if value and key not in _KEYS]
    if lost:
        notes.append(f"{place}: {', '.join(lost)}: no counterpart; without it the rule would take more")
        return None
    selector: Rule = {"classes": [_CLASSES[kind]]}
    selector |= {_KEYS[key]: _list(value) for key, value in given.items() if value}
    drivers = selector.get("drivers", [])
    ready = [driver for driver in drivers if "vfio" in str(driver)]  # as all VFIO drivers are called
    if drivers and not ready:
        names = ", ".join(map(str, drivers))
        notes.append(f"{place}: functions on {names} are for containers: only VFIO drivers serve VMs")
        return None
    if ready:
        selector["drivers"] = ready
    return selector


def _list(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _translate_generic(document: dict[str, Any], rules: list[Rule], notes: list[str]) -> None:
    domain = document.get("domain") or _GENERIC_DOMAIN
    listed = document.get(_GENERIC_LIST)
    for number, entry in enumerate(listed if isinstance(listed, list) else []):
        place = f"{_GENERIC_LIST}[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            notes.append(f"{place}: it has no name")
            continue
        name = entry["name"] if "/" in entry["name"] else f"{domain}/{entry['name']}"
        groups = entry.get("groups")
        found = [
            _node(each, f"{place} ({name})", notes) for each in (groups if isinstance(groups, list) else [])
        ]
        nodes = [node for node in found if node is not None]
        rules += [{"name": name, "node": node} for node in nodes[:1]]
        if len(nodes) > 1:
            notes.append(
                f"{place} ({name}): {len(nodes)} groups; a name has one here, and the first is taken"
            )


def _node(group: Any, place: str, notes: list[str]) -> Rule | None:
    paths = group.get("paths") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(paths, list) or not paths:
        usb = isinstance(group, dict) and "usb" in group
        notes.append(f"{place}: a group {'of USB devices' if usb else 'without paths'} is left out")
        return None
    entries = [_path(each, place, notes) for each in paths]
    if any(entry is None for entry in entries):
        return None
    return _unit([entry for entry in entries if entry is not None], group.get("count"))


def _path(given: Any, place: str, notes: list[str]) -> Rule | None:
    path = given.get("path") if isinstance(given, dict) else None
    if not isinstance(path, str):
        notes.append(f"{place}: a path without path; its group is left out")
        return None
    if given.get("type") == _MOUNT or not path.startswith("/dev/"):
        notes.append(f"{place}: {path} is no device node below /dev; its group is left out")
        return None
    keys = ("path", "mountPath", "permissions", "optional", "limit")
    entry = {key: given[key] for key in keys if given.get(key) not in (None, "", False)}
    return {**entry, "permissions": entry.get("permissions", "mrw")}


def _unit(entries: list[Rule], count: Any) -> Rule:
    """Return the node of a rule: a pattern leads, if there is one; the limit of each other path stays."""
    leading = next((entry for entry in entries if is_pattern(entry["path"])), None)
    shares = count if isinstance(count, int) and count > 0 else 1
    if leading is None:
        least = min((entry.get("limit", 1) for entry in entries), default=1)
        shares, per_path = shares * least, False
    else:
        shares, per_path = shares * leading.get("limit", 1), True
        entries = [leading, *(entry for entry in entries if entry is not leading)]
    for entry in entries:
        limit = entry.pop("limit", 1)
        if per_path and entry is not leading:
            entry["limit"] = limit
    node: Rule = {"paths": entries} | ({"count": shares} if shares > 1 else {})
    return node | ({"perPath": True} if per_path else {})
