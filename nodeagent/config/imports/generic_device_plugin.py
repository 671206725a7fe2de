# SPDX-License-Identifier: Apache-2.0
"""Translates a configuration of squat's generic-device-plugin (``devices``) into rules, as plain data.

There a group with patterns gives as many devices as all of its paths have matches, the first with the first;
a path's ``limit`` says how often a match may be used. Here one pattern leads, and the others go with it. What
would give a container more than before is left out and said. Source: its README and pkg, 0.1.
"""

from __future__ import annotations

from typing import Any

from nodeagent.config.imports.sriov_device_plugin import Rule, Translation
from nodeagent.model.nodes import is_pattern

LIST = "devices"
DOMAIN = "squat.ai"  # its own default, --domain
_MOUNT = "Mount"  # a type of path that is no device node


def is_one(document: dict[str, Any]) -> bool:
    """True if this is such a configuration."""
    listed = document.get(LIST)
    first = listed[0] if isinstance(listed, list) and listed else None
    return isinstance(first, dict) and isinstance(first.get("groups"), list)


def translated(document: dict[str, Any]) -> Translation:
    """The rules of all resources, in the order written. Never raises: what makes no sense is a note."""
    rules, notes = list[Rule](), list[str]()
    domain = document.get("domain") or DOMAIN
    listed = document.get(LIST)
    for number, entry in enumerate(listed if isinstance(listed, list) else []):
        place = f"{LIST}[{number}]"
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
    return Translation(tuple(rules), tuple(notes))


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
    """A pattern leads, if there is one; what each may be used for beside it is what its limit says."""
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
