# SPDX-License-Identifier: Apache-2.0
"""Parses the KubeVirt CR, as the API server sends it, into ``KubeVirtCR``.

This module sends no requests and decides nothing.

The fields are those of KubeVirt's API (staging/src/kubevirt.io/api/core/v1/types.go). KubeVirt's CRD checks
the types; a file, or a CRD without a schema, does not. An entry with an invalid field is rejected alone. If
a section, a list or an entry has the wrong type, the content of the CR is unknown: the whole CR is
rejected, and the last valid one stays active.

A file may contain a HyperConverged instead, from which its operator creates the KubeVirt CR (api/v1beta1 of
kubevirt/hyperconverged-cluster-operator): the sections are in its ``spec``, and three keys differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from nodeagent.cluster import fields
from nodeagent.cluster.fields import Notes
from nodeagent.model.host import Kind
from nodeagent.model.kubevirt import (
    DEVELOPER,
    DISABLE_MDEVS,
    HOST_DEVICES,
    MDEVS,
    MDEVS_OF_NODES,
    PERMITTED,
    KubeVirtCR,
    MdevsConfiguration,
    Permitted,
)
from nodeagent.model.problem import Problem, misconfigured
from nodeagent.model.spec import NodeTypes, WantedType

KIND = "KubeVirt"
HYPER_CONVERGED = "HyperConverged"
# in the order of preference: a CR that virt-operator has deployed comes first
_PHASES = ("Deployed", "Deploying")
_PCI_SELECTOR = re.compile(r"([0-9a-f]{4}):([0-9a-f]{4})")
_USB_ID = re.compile(r"[0-9a-f]{4}")
_RESOURCE = "<domain>/<name>, such as example.com/gpu"
_TYPE = "the name of a type, such as GRID T4-1Q, or its id, such as nvidia-222"


def cr(document: Any) -> KubeVirtCR:
    """Return the parsed CR; ``fault`` is set if all of it is unusable. Never raises."""
    metadata = fields.table(fields.table(document).get("metadata"))
    notes = Notes()
    namespace, name = (_name(metadata, key) for key in ("namespace", "name"))
    configuration, fault = _configuration(document)
    if fault is not None:
        return KubeVirtCR(namespace, name, fault=fault)
    permitted, mdevs = configuration.get(PERMITTED), configuration.get(MDEVS)
    _misplaced(configuration, notes)
    entries, unusable = _permitted(fields.table(permitted), notes)
    found = KubeVirtCR(
        namespace,
        name,
        permitted=None if permitted is None else tuple(entries),
        mdevs=None if mdevs is None else _mdevs(mdevs, notes),
        gates=_gates(fields.table(configuration.get(DEVELOPER)), notes) | _gates_of_operator(document),
        refused=tuple(notes.findings),
        unusable=tuple(unusable),
    )
    if notes.mistyped:
        first = notes.mistyped[0]
        return KubeVirtCR(
            namespace,
            name,
            fault=misconfigured("", f"{_place(document)}.{first.subject}: {first.message}", first.hint),
        )
    return found


def chosen(documents: Iterable[Any]) -> Any | None:
    """Return the CR that applies, of all in the cluster; None if none applies.

    As in virt-handler, a CR does not apply if it is being deleted, or if virt-operator has not processed it
    (``status.phase`` is empty). virt-operator allows one CR. If there are several CRs, a deployed CR comes
    first, then the oldest, then the first by name, so that all nodes choose the same CR.
    """
    counting = [document for document in documents if counts(document)]
    return min(counting, key=_rank, default=None)


def counts(document: Any) -> bool:
    """Return True if virt-operator has processed this CR, and the CR is not being deleted."""
    metadata, status = (fields.table(fields.table(document).get(key)) for key in ("metadata", "status"))
    phase = status.get("phase")
    return metadata.get("deletionTimestamp") is None and isinstance(phase, str) and phase != ""


def _rank(document: dict[str, Any]) -> tuple[int, str, str, str]:
    metadata = fields.table(document.get("metadata"))
    phase = document["status"]["phase"]
    order = _PHASES.index(phase) if phase in _PHASES else len(_PHASES)
    created = metadata.get("creationTimestamp")
    return order, str(created), _name(metadata, "namespace"), _name(metadata, "name")


def _name(metadata: dict[Any, Any], key: str) -> str:
    """Return the name; "" for a name in a file that the API server would reject."""
    return fields.text(metadata, key, "a name", "", Notes()) or ""


def _configuration(document: Any) -> tuple[dict[Any, Any], Problem | None]:
    """Return ``spec.configuration``, and the problem if it is unusable."""
    if not isinstance(document, dict) or document.get("kind", KIND) not in (KIND, HYPER_CONVERGED):
        kind = document.get("kind") if isinstance(document, dict) else document
        return {}, misconfigured(
            "",
            f"this is no KubeVirt object but {fields.shown(kind)}",
            "use an object of kind: KubeVirt or HyperConverged",
        )
    # the KubeVirt user guide shows parts of a CR
    spec = document.get("spec", document if "kind" not in document else None)
    configuration = {} if spec is None else fields.table(spec).get("configuration")
    if _is_hyperconverged(document):
        configuration = spec
    for place, value in (("spec", spec), ("spec.configuration", configuration)):
        if value is not None and not isinstance(value, dict):
            return {}, _no_table(place, value)
    found = fields.table(configuration)
    for key in (PERMITTED, MDEVS, DEVELOPER):
        if found.get(key) is not None and not isinstance(found[key], dict):
            return {}, _no_table(f"{_place(document)}.{key}", found[key])
    return found, None


def _is_hyperconverged(document: Any) -> bool:
    """Return True for a HyperConverged or a part of one; in a KubeVirt CR the sections are one level
    deeper.
    """
    spec = fields.table(fields.table(document).get("spec"))
    part = "kind" not in document and "configuration" not in spec and (PERMITTED in spec or MDEVS in spec)
    return part or document.get("kind") == HYPER_CONVERGED


def _place(document: Any) -> str:
    """Return the path of the sections in the object."""
    return "spec" if _is_hyperconverged(document) else "spec.configuration"


def _gates_of_operator(document: Any) -> frozenset[str]:
    """Return the feature gates that the HyperConverged operator sets (controllers/handlers/kubevirt.go)."""
    if not _is_hyperconverged(document):
        return frozenset()
    gates = fields.table(fields.table(document.get("spec")).get("featureGates"))
    disabled = gates.get("disableMDevConfiguration") is True
    return frozenset({HOST_DEVICES, DISABLE_MDEVS} if disabled else {HOST_DEVICES})


def _no_table(place: str, value: Any) -> Problem:
    return misconfigured(
        "",
        f"{place} is {fields.shown(value)}, not a table",
        "correct it in the KubeVirt CR, or remove it",
    )


def _misplaced(configuration: dict[Any, Any], notes: Notes) -> None:
    """Report a list of mdev types for nodes that is in the wrong section of the CR. An API server drops this
    misplaced list without a warning.
    """
    permitted = fields.table(configuration.get(PERMITTED))
    for place, section in (("", configuration), (f"{PERMITTED}.", permitted)):
        if MDEVS_OF_NODES in section:
            notes.add(f"{place}{MDEVS_OF_NODES}", "KubeVirt does not read it here", f"move it into {MDEVS}")


def _permitted(section: dict[Any, Any], notes: Notes) -> tuple[list[Permitted], list[tuple[str, Problem]]]:
    """Return the valid entries, and the problem of each invalid entry with the entry's resource."""
    found: list[Permitted] = []
    unusable: list[tuple[str, Problem]] = []
    lists = (("pciHostDevices", _pci), ("mediatedDevices", _mdev), ("usb", _usb), ("usbHostDevices", _usb))
    for key, parse in lists:
        for place, entry in fields.tables(section, key, PERMITTED, notes):
            if entry.get("disabled") is True:  # a HyperConverged has this key; the entry counts as missing
                continue
            resource = fields.text(entry, "resourceName", _RESOURCE, place, notes)
            if resource is None:
                continue
            first = len(notes.findings)
            usable, external = fields.flag(entry, "externalResourceProvider", place, notes)
            permitted = parse(place, entry, resource, bool(external), notes) if usable else None
            if permitted is not None:
                found.append(permitted)
                continue
            refused = [
                each._replace(message=f"{fields.shown(resource)}: {each.message}")
                for each in notes.findings[first:]
            ]
            notes.findings[first:] = refused
            unusable.append((resource, refused[0]))
    return found, unusable


def _pci(place: str, entry: dict[Any, Any], resource: str, external: bool, notes: Notes) -> Permitted | None:
    wanted = "vendor:device in hexadecimal digits, such as 10DE:1EB8"
    key = "pciDeviceSelector" if "pciDeviceSelector" in entry else "pciVendorSelector"
    selector = fields.text(entry, key, wanted, place, notes)
    if selector is None:
        return None
    ids = _PCI_SELECTOR.fullmatch(selector.lower())
    if ids is None:
        notes.add(place, f"{key} {fields.shown(selector)} is no selector", f"write {wanted}")
        return None
    return Permitted(Kind.PCI, resource, (ids[0],), external, place)


def _mdev(place: str, entry: dict[Any, Any], resource: str, external: bool, notes: Notes) -> Permitted | None:
    selector = fields.text(entry, "mdevNameSelector", _TYPE, place, notes)
    if selector is None:
        return None
    if not selector.strip(" _"):
        notes.add(place, f"mdevNameSelector {fields.shown(selector)} names no type", f"write {_TYPE}")
        return None
    return Permitted(Kind.MDEV, resource, (selector,), external, place)


def _usb(place: str, entry: dict[Any, Any], resource: str, external: bool, notes: Notes) -> Permitted | None:
    """Return an entry for USB devices that are allocated together; an invalid selector makes it invalid."""
    before = len(notes.findings)
    selectors = tuple(
        f"{_usb_id(selector, 'vendor', where, notes)}:{_usb_id(selector, 'product', where, notes)}"
        for where, selector in fields.tables(entry, "selectors", place, notes)
    )
    if not selectors and len(notes.findings) == before and not external:
        notes.add(place, "it has no selectors", "name vendor and product of each device of the bundle")
    if len(notes.findings) > before:
        return None
    return Permitted(Kind.USB, resource, selectors, external, place)


def _usb_id(selector: dict[Any, Any], key: str, place: str, notes: Notes) -> str:
    wanted = "four hexadecimal digits without 0x, such as 46f4"
    value = fields.text(selector, key, wanted, place, notes)
    if value is not None and _USB_ID.fullmatch(value.lower()) is None:
        notes.add(place, f"{key} {fields.shown(value)} is not a USB id", f"write {wanted}")
    return (value or "").lower()


def _mdevs(section: dict[Any, Any], notes: Notes) -> MdevsConfiguration:
    _, enabled = fields.flag(section, "enabled", MDEVS, notes)
    overrides = fields.tables(section, MDEVS_OF_NODES, MDEVS, notes)
    nodes = (_node(place, entry, notes) for place, entry in overrides)
    return MdevsConfiguration(
        _types(section, MDEVS, notes), tuple(each for each in nodes if each is not None), enabled
    )


def _node(place: str, entry: dict[Any, Any], notes: Notes) -> NodeTypes | None:
    selector = entry.get("nodeSelector")
    hint = "write labels and their values; {} fits every node"
    if selector is None:
        notes.add(place, "nodeSelector is missing", hint)
        return None
    labels = selector.items() if isinstance(selector, dict) else ()
    texts = [each for label in labels for each in label]
    if not isinstance(selector, dict) or not all(isinstance(each, str) for each in texts):
        notes.add_mistyped(f"{place}.nodeSelector", selector, "a table of texts", hint)
        return None
    if not all(each.isprintable() for each in texts):
        notes.add(place, "nodeSelector contains unprintable characters", hint)
        return None
    return NodeTypes(tuple(labels), _types(entry, place, notes))


def _types(section: dict[Any, Any], place: str, notes: Notes) -> tuple[WantedType, ...]:
    """Return the list of mdev types; the deprecated key is read only if the new key is empty."""
    key = "mediatedDeviceTypes" if section.get("mediatedDeviceTypes") else "mediatedDevicesTypes"
    return tuple(map(WantedType, fields.texts(section, key, _TYPE, place, notes)))


def _gates(section: dict[Any, Any], notes: Notes) -> frozenset[str]:
    place = DEVELOPER
    listed, disabled = (
        fields.texts(section, key, "the name of a feature gate", place, notes)
        for key in ("featureGates", "disabledFeatureGates")
    )
    return frozenset(listed) - frozenset(disabled)
