# SPDX-License-Identifier: Apache-2.0
"""Translates a configuration of the sriov-network-device-plugin (``resourceList``) into rules, as plain data.

Its selectors mean what ours do: one of the values, all of the keys, one of the selectors, the first resource
that fits. What would take more than was meant is left out and said: a selector with a key that has no
counterpart, or for drivers that give a function to containers. Source: its README and pkg/types, 3.11.
"""

from __future__ import annotations

from typing import Any, NamedTuple

LIST = "resourceList"
_PREFIX = "intel.com"  # its own default, --resource-prefix
_CLASSES = {"netDevice": "02", "accelerator": "12"}
_KEYS = {"vendors": "vendors", "devices": "devices", "drivers": "drivers", "pciAddresses": "addresses"}
_MEANINGLESS = frozenset({"resourceName", "resourcePrefix", "deviceType", "selectors", "excludeTopology"})

Rule = dict[str, Any]


class Translation(NamedTuple):
    """Rules as one would write them, and a line for each thing that could not be translated."""

    rules: tuple[Rule, ...]
    notes: tuple[str, ...]


def translated(document: dict[str, Any]) -> Translation:
    """The rules of all resources, in the order written. Never raises: what makes no sense is a note."""
    rules, notes = list[Rule](), list[str]()
    listed = document.get(LIST)
    for number, entry in enumerate(listed if isinstance(listed, list) else []):
        place = f"{LIST}[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("resourceName"), str):
            notes.append(f"{place}: it has no resourceName")
            continue
        name = f"{entry.get('resourcePrefix') or _PREFIX}/{entry['resourceName']}"
        selectors = _selectors(entry, f"{place} ({name})", notes)
        if selectors:
            rules.append({"name": name, "pci": selectors})
    return Translation(tuple(rules), tuple(notes))


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
