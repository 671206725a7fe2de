# SPDX-License-Identifier: Apache-2.0
"""``nodeagent config --from FILE``: translates a file of KubeVirt or another device plugin into rules.

The rules are printed on stdout as a usable configuration file; notes about entries that cannot be translated
are printed on stderr. The command uses neither the daemon nor the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodeagent import config
from nodeagent.base.errors import ConfigError
from nodeagent.cli import output
from nodeagent.cluster import fields, kubevirt
from nodeagent.config import device_plugins, manifests
from nodeagent.config.device_plugins import GENERIC_DOMAIN, Rule, Translation
from nodeagent.model import plain
from nodeagent.model.configuration import Configuration
from nodeagent.model.ids import VFIO_PCI
from nodeagent.model.kubevirt import MDEVS, PERMITTED, KubeVirtCR
from nodeagent.model.spec import API_VERSION, DeviceRule, MdevRule, PciRule, UsbRule
from nodeagent.policy import permitted

if TYPE_CHECKING:
    import argparse

_LISTS = ("pciHostDevices", "mediatedDevices", "usb", "usbHostDevices")  # below permittedHostDevices
_Source = tuple[str, dict[str, Any]]
"""The key of a ConfigMap in which a document was found, or "", and the document."""
_NO_PLACE = "the daemon: "  # the place in errors about values that are in no file


def run(options: argparse.Namespace) -> int:
    """Print the translated configuration, and notes about the entries that cannot be translated.

    :raises ConfigError: if nothing in the file can be translated.
    """
    path = options.translated
    sources = [each for document in manifests.read(path) for each in _find_sources(document, path)]
    if not sources:
        raise ConfigError(
            f"{path}: it belongs neither to KubeVirt nor to a known device plugin",
            "give a KubeVirt or HyperConverged CR, its permittedHostDevices, a resourceList, or devices of "
            "generic-device-plugin; a file of vgpu-device-manager is used as it is (mdevs.vgpuConfigFile)",
        )
    document, notes = _translate(sources)
    text = manifests.written(document)
    if options.output == "json":
        text = output.format_document("json", document)
    return output.print_answer(text, *(f"{path}: {note}" for note in dict.fromkeys(notes)))


def _find_sources(document: Any, path: str, name: str = "") -> Iterator[_Source]:
    """The parts of a document that can be translated; in a ConfigMap each text may be a file of its own."""
    if not isinstance(document, dict):
        return
    if document.get("kind") == "ConfigMap":
        for key, text in fields.table(document.get("data")).items():
            for each in manifests.parsed(str(text), f"{path}: {key}"):
                yield from _find_sources(each, path, key)
    elif device_plugins.is_known(document) or _is_of_kubevirt(document):
        yield name, document
    else:
        yield from (("", each) for each in _find_in_arguments(document, path))


def _is_of_kubevirt(document: dict[str, Any]) -> bool:
    if "kind" in document:
        return document["kind"] in (kubevirt.KIND, kubevirt.HYPER_CONVERGED)
    return any(key in document for key in ("spec", "configuration", PERMITTED, MDEVS, *_LISTS))


def _find_in_arguments(document: dict[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """The devices in the arguments of containers: generic-device-plugin's manifest has them there."""
    template = fields.table(fields.table(document.get("spec")).get("template"))
    containers = fields.table(template.get("spec")).get("containers")
    for container in containers if isinstance(containers, list) else ():
        listed = fields.table(container).get("args")
        texts = [str(each) for each in listed] if isinstance(listed, list) else []
        words = [word for each in texts for word in (each.split("=", 1) if each.startswith("--") else [each])]
        options = list(itertools.pairwise(words))
        values = [value for option, value in options if option == "--device"]
        if values:
            devices = [each for value in values for each in manifests.parsed(value, f"{path}: --device")]
            yield {"devices": devices, "domain": dict(options).get("--domain", GENERIC_DOMAIN)}


def _translate(sources: Sequence[_Source]) -> tuple[dict[str, Any], list[str]]:
    rules, mdevs, notes = list[Rule](), dict[str, Any](), list[str]()
    for name, source in sources:
        if device_plugins.is_known(source):
            found = device_plugins.translate(source)
        else:
            cr = _parse_cr(source)
            found = _translate_permitted(cr)
            mdevs |= _translate_mdevs(cr)
        rules += found.rules
        notes += (f"{name}: {note}" if name else note for note in found.notes)
    if len(texts := dict.fromkeys(name for name, _ in sources if name)) > 1:
        notes.append(
            f"the rules of {', '.join(texts)} are combined: remove the rules that are for other nodes"
        )
    if mdevs and (fault := _find_fault([], mdevs)) is not None:
        notes.append(f"{MDEVS}: {fault.what.removeprefix(_NO_PLACE)}; {fault.hint}")
        mdevs = {}
    if mdevs:
        notes.append("mdevs.manage is not set: set it to true when virt-handler no longer creates mdevs")
    usable = _select_usable(rules, notes)
    document = {"apiVersion": API_VERSION, "resources": usable} | ({"mdevs": mdevs} if mdevs else {})
    return document, notes


def _parse_cr(source: dict[str, Any]) -> KubeVirtCR:
    """Return the CR of a file, or of a file with a part of a CR. :raises ConfigError: if it is unusable."""
    whole = source
    if "kind" not in source and "spec" not in source:
        part = {PERMITTED: source} if any(key in source for key in _LISTS) else source
        whole = {"spec": {"configuration": part.get("configuration", part)}}
    cr = kubevirt.cr(whole)
    if cr.fault is not None:
        raise ConfigError(cr.fault.message, cr.fault.hint)
    return cr


def _translate_permitted(cr: KubeVirtCR) -> Translation:
    """Rules for all entries, as if all of them had ``externalResourceProvider: true``."""
    if cr.permitted is None:
        return Translation((), tuple(f"{each.subject}: {each.message}; {each.hint}" for each in cr.refused))
    notes: list[str] = []
    all_external = replace(cr, permitted=tuple(each._replace(external=True) for each in cr.permitted))
    entries = permitted.entries(all_external, Configuration())
    notes += [f"{each.subject}: {each.message}; {each.hint}" for each in (*cr.refused, *entries.findings)]
    inside = {each.resource for each in cr.permitted if not each.external}
    if shown := ", ".join(rule.name for rule in entries.rules if rule.name in inside):
        notes.append(
            f"set externalResourceProvider: true in the CR, or virt-handler offers them too: {shown}"
        )
    return Translation(tuple(map(_format_rule, entries.rules)), tuple(notes))


def _format_rule(rule: DeviceRule) -> Rule:
    """The rule as in a configuration file. ``drivers``: virt-handler serves only functions on vfio-pci."""
    bundle = {"bundle": rule.bundle} if isinstance(rule, UsbRule) else {}
    if isinstance(rule, PciRule):
        by_vendor: dict[str, list[str]] = {}
        for selector in rule.selectors:
            by_vendor.setdefault(selector.vendors[0], []).extend(selector.devices)
        picked = [{"vendors": [v], "devices": ids, "drivers": [VFIO_PCI]} for v, ids in by_vendor.items()]
        return {"name": rule.name, "pci": picked}
    if isinstance(rule, MdevRule):
        names = [name for each in rule.selectors for name in each.names]
        return {"name": rule.name, "mdev": [{"names": names}]}
    return {"name": rule.name, rule.kind.value: list(map(plain.dump, rule.selectors)), **bundle}


def _translate_mdevs(cr: KubeVirtCR) -> dict[str, Any]:
    """The mdev types in the form of a configuration file, without ``manage``."""
    if cr.mdevs is None:
        return {}
    nodes = [
        {"nodeSelector": dict(node.labels), "types": [each.name for each in node.types]}
        for node in cr.mdevs.nodes
    ]
    found = {"types": [each.name for each in cr.mdevs.types], "nodes": nodes}
    return {key: value for key, value in found.items() if value}


def _select_usable(rules: list[Rule], notes: list[str]) -> list[Rule]:
    """The rules that do not contradict the rules before them; each other rule gets a note."""
    if _find_fault(rules) is None:
        return rules
    kept: list[Rule] = []
    for rule in rules:
        fault = _find_fault([*kept, rule])
        if fault is None:
            kept.append(rule)
        else:
            notes.append(f"{rule['name']}: {fault.what.removeprefix(_NO_PLACE)}; {fault.hint}")
    return kept


def _find_fault(rules: list[Rule], mdevs: Mapping[str, Any] | None = None) -> ConfigError | None:
    """The first error in a configuration of these rules and mdevs; None if it is valid."""
    values = {"resources": rules} | {f"mdevs.{key}": value for key, value in (mdevs or {}).items()}
    try:
        config.from_values([config.Value(key, value, "") for key, value in values.items()], {})
    except ConfigError as error:
        return error
    return None
