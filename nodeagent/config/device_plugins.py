# SPDX-License-Identifier: Apache-2.0
"""Converts configurations of two other device plugins into resource rules, as plain data.

Selectors of the sriov-network-device-plugin (``resourceList``; README and pkg/types of 3.11) mean the same as
in nodeagent: values and selectors are combined with OR, keys with AND, and the first matching resource gets
the device. A selector is omitted, with a note, if one of its keys has no counterpart in nodeagent or if it
selects drivers for containers, because the converted selector would match too many devices. ``needVhostNet``
selects nothing, and of two keys that name the same PF (the SR-IOV operator writes both) one is enough.

squat's generic-device-plugin (``devices``; its README and deviceplugin/path.go, 0.1): a group has as many
devices as the pattern with the most matches, or fewer where another path has not enough of them; a path's
``limit`` says how often a match may be used for that. In the converted rule, the pattern with the smallest
limit comes first and has one device for each match, with device nodes of the other paths added. Each group
becomes one rule, and rules with the same name form one resource. The USB devices of one group are allocated
together. A group is omitted, with a note, if the converted rule would give a container more devices than the
other plugin does.

Both plugins read their files with Go's encoding/json, which ignores the case of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from nodeagent.model.nodes import is_pattern

_SRIOV_LIST = "resourceList"
_SRIOV_PREFIX = "intel.com"  # its own default, --resource-prefix
_OPERATOR_PREFIX = "openshift.io"  # with which the SR-IOV operator starts it
_CLASSES = {"netDevice": "02", "accelerator": "12"}
_KEYS = {
    "vendors": "vendors",
    "devices": "devices",
    "drivers": "drivers",
    "pciAddresses": "addresses",
    "pfNames": "pfs",
    "rootDevices": "pfs",
}
_VHOST = "needVhostNet"
_MEANINGLESS = frozenset({"resourceName", "resourcePrefix", "deviceType", "selectors", "excludeTopology"})
_GENERIC_LIST = "devices"
GENERIC_DOMAIN = "squat.ai"  # its own default, --domain
_MOUNT = "Mount"  # a type of path that is no device node
_SPELLED = {
    key.lower(): key
    for key in (
        *(_SRIOV_LIST, "resourceName", "resourcePrefix", "deviceType", "selectors", "excludeTopology"),
        *(*_KEYS, _GENERIC_LIST, "domain", "name", "groups", "count", "paths", "path", "mountPath"),
        *("permissions", "optional", "limit", "type", "usb", "vendor", "product", "serial", _VHOST),
    )
}

Rule = dict[str, Any]


class Translation(NamedTuple):
    """The rules as a user would write them, and one note for each part that could not be converted."""

    rules: tuple[Rule, ...]
    notes: tuple[str, ...]


def is_known(document: dict[str, Any]) -> bool:
    """Return True if the document is a configuration of one of the two plugins."""
    document = _spell_keys(document)
    return _SRIOV_LIST in document or _is_generic(document)


def translate(document: dict[str, Any]) -> Translation:
    """Return the rules of all resources in the order of the file, with a note for each unusable part."""
    rules, notes = list[Rule](), list[str]()
    document = _spell_keys(document)
    if _SRIOV_LIST in document:
        _translate_sriov(document, rules, notes)
    else:
        _translate_generic(document, rules, notes)
    return Translation(tuple(rules), tuple(notes))


def _spell_keys(value: Any) -> Any:
    """Return the same data with known keys in the documented spelling."""
    if isinstance(value, list):
        return [_spell_keys(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {_SPELLED.get(str(key).lower(), key): _spell_keys(each) for key, each in value.items()}


def _is_generic(document: dict[str, Any]) -> bool:
    return any(
        isinstance(each, dict) and isinstance(each.get("groups"), list) for each in _list_devices(document)
    )


def _list_devices(document: dict[str, Any]) -> list[Any]:
    """Return the devices of a file; the text of a ``--device`` flag is one device instead of a list."""
    listed = document.get(_GENERIC_LIST, [document] if "groups" in document else [])
    return listed if isinstance(listed, list) else []


def _translate_sriov(document: dict[str, Any], rules: list[Rule], notes: list[str]) -> None:
    listed, is_default = document.get(_SRIOV_LIST), False
    for number, entry in enumerate(listed if isinstance(listed, list) else []):
        place = f"{_SRIOV_LIST}[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("resourceName"), str):
            notes.append(f"{place}: it has no resourceName")
            continue
        name = f"{entry.get('resourcePrefix') or _SRIOV_PREFIX}/{entry['resourceName']}"
        selectors = _selectors(entry, f"{place} ({name})", notes)
        if selectors:
            topology = {"topology": False} if entry.get("excludeTopology") else {}
            rules.append({"name": name, "pci": selectors, **topology})
            is_default = is_default or not entry.get("resourcePrefix")
    if is_default:
        notes.append(
            f"{_SRIOV_PREFIX} is the plugin's default where resourcePrefix is not set; rename the rules if "
            f"it runs with another --resource-prefix (its operator: {_OPERATOR_PREFIX})"
        )


def _selectors(entry: dict[str, Any], place: str, notes: list[str]) -> list[Rule]:
    kind = entry.get("deviceType") or "netDevice"
    if kind not in _CLASSES:
        notes.append(f"{place}: deviceType {kind} has no counterpart; {' and '.join(_CLASSES)} have one")
        return []
    lost = [key for key in entry if key not in _MEANINGLESS and entry[key]]
    notes += [f"{place}: {key} has no counterpart and is left out" for key in lost]
    given = entry.get("selectors")
    found = [_selector(each, kind, place, notes) for each in (given if isinstance(given, list) else [given])]
    return [selector for selector in found if selector is not None]


def _selector(given: Any, kind: str, place: str, notes: list[str]) -> Rule | None:
    if not isinstance(given, dict) or not any(given.values()):
        notes.append(f"{place}: no selectors, so it matches no device")
        return None
    given = {key: value for key, value in given.items() if value}
    if given.pop(_VHOST, None):
        notes.append(f"{place}: {_VHOST} has no counterpart and is left out: it selects no device")
    lost = [key for key in given if key not in _KEYS]
    if "pfNames" in given and "rootDevices" in given:
        lost += _merge_pfs(given, place, notes)
    if lost:
        notes.append(
            f"{place}: {', '.join(lost)}: no counterpart; without this key the rule would match more devices"
        )
        return None
    selector: Rule = {"classes": [_CLASSES[kind]]}
    selector |= {_KEYS[key]: _list(value) for key, value in given.items()}
    if "drivers" in selector:
        ready = [
            driver for driver in selector["drivers"] if "vfio" in driver
        ]  # every VFIO driver has "vfio" in its name
        if others := ", ".join(driver for driver in selector["drivers"] if driver not in ready):
            notes.append(
                f"{place}: functions bound to {others} are for containers only; VMs need a VFIO driver"
            )
        if not ready:
            return None
        selector["drivers"] = ready
    return selector


def _merge_pfs(given: dict[str, Any], place: str, notes: list[str]) -> list[str]:
    """Remove the redundant one of two keys that name the same PFs; keep both if both have VF numbers."""
    numbered = [key for key in ("rootDevices", "pfNames") if any("#" in each for each in _list(given[key]))]
    if len(numbered) > 1:
        return ["pfNames and rootDevices with numbers"]
    kept = numbered[0] if numbered else "pfNames"
    other = "pfNames" if kept == "rootDevices" else "rootDevices"
    named = ", ".join(_list(given.pop(other)))
    notes.append(f"{place}: {other} ({named}) is left out: it has to name the same PFs as {kept}")
    return []


def _list(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _translate_generic(document: dict[str, Any], rules: list[Rule], notes: list[str]) -> None:
    domain = document.get("domain") or GENERIC_DOMAIN
    for number, entry in enumerate(_list_devices(document)):
        place = f"{_GENERIC_LIST}[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            notes.append(f"{place}: it has no name")
            continue
        name = entry["name"] if "/" in entry["name"] else f"{domain}/{entry['name']}"
        groups = entry.get("groups")
        found = [
            rule
            for group in (groups if isinstance(groups, list) else [groups])
            for rule in _group(group, name, f"{place} ({name})", notes)
        ]
        # rules with the same name must have the same options
        if any(len(rule.get("usb", ())) > 1 for rule in found):
            found = [{**rule, "bundle": True} if "usb" in rule else rule for rule in found]
        rules += found
    if rules and not document.get("domain"):
        notes.append(
            f"{domain} is the plugin's default; rename the rules if the plugin runs with another --domain"
        )


def _group(group: Any, name: str, place: str, notes: list[str]) -> list[Rule]:
    """Return the rules of a group: one for its paths, one for its USB devices."""
    lists = (group.get(key) if isinstance(group, dict) else None for key in ("paths", "usb"))
    paths, usb = (each if isinstance(each, list) else [] for each in lists)
    found: list[Rule] = []
    if paths:
        entries = [_path(each, place, notes) for each in paths]
        if None not in entries:
            node = _unit([entry for entry in entries if entry is not None], group.get("count"))
            found.append({"name": name, "node": node})
    if usb:
        selectors = [_usb(each, place, notes) for each in usb]
        if None not in selectors:
            found.append({"name": name, "usb": selectors})
            notes += _describe_usb_differences(group.get("count"), len(usb), place)
    if not paths and not usb:
        notes.append(f"{place}: a group without paths or USB devices is left out")
    return found


def _usb(given: Any, place: str, notes: list[str]) -> Rule | None:
    """Return the selector of a USB device; its ids are hexadecimal, even if YAML parsed 2838 as a number."""
    ids = [given.get(key) if isinstance(given, dict) else None for key in ("vendor", "product")]
    if None in ids or "" in ids:
        notes.append(f"{place}: USB devices need vendor and product; their group is left out")
        return None
    vendor, product = (str(each).zfill(4) for each in ids)
    serial = given.get("serial")
    return {"vendors": [vendor], "products": [product]} | ({"serials": [str(serial)]} if serial else {})


def _describe_usb_differences(count: Any, entries: int, place: str) -> Iterator[str]:
    yield f"{place}: while a pod uses a USB device, user and group 107 own its device node (docs/usb.md)"
    if isinstance(count, int) and count > 1:
        yield f"{place}: count {count} has no counterpart: only one container can use a USB device at a time"
    if entries > 1:
        yield f"{place}: these {entries} become one device; without bundle each USB device is listed alone"


def _path(given: Any, place: str, notes: list[str]) -> Rule | None:
    path = given.get("path") if isinstance(given, dict) else None
    if not isinstance(path, str):
        notes.append(f"{place}: an entry of paths has no path; its group is left out")
        return None
    if given.get("type") == _MOUNT or not path.startswith("/dev/"):
        notes.append(f"{place}: {path} is not a device node below /dev; its group is left out")
        return None
    keys = ("path", "mountPath", "permissions", "optional", "limit")
    entry = {key: given[key] for key in keys if given.get(key) not in (None, "", False)}
    return {**entry, "permissions": entry.get("permissions", "mrw")}


def _unit(entries: list[Rule], count: Any) -> Rule:
    """Return the ``node`` entry of a rule. A pattern comes first, because the rule then has a device for each
    match of its first path.
    """
    patterns = (entry for entry in entries if is_pattern(entry["path"]))
    leading = min(patterns, key=lambda entry: int(entry.get("limit", 1)), default=None)
    if leading is not None:
        entries = [leading, *(entry for entry in entries if entry is not leading)]
    for entry in entries:
        limit = entry.pop("limit", 1)
        if leading is not None and entry is not leading:
            entry["limit"] = limit
    node: Rule = {"paths": entries} | ({"count": count} if isinstance(count, int) and count > 1 else {})
    return node | ({"perPath": True} if leading is not None else {})
