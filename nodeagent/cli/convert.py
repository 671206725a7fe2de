# SPDX-License-Identifier: Apache-2.0
"""``nodeagent config --from FILE``: rules out of a file of KubeVirt or of another device plugin.

The rules go to stdout as a configuration that can be used as it is; what could not be translated goes to
stderr. Nothing of the running daemon, and nothing of the host, has a part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from nodeagent import config
from nodeagent.base.errors import ConfigError
from nodeagent.cli import output
from nodeagent.cluster import kubevirt
from nodeagent.config import device_plugins, manifests
from nodeagent.config.device_plugins import Rule, Translation
from nodeagent.model.configuration import Configuration
from nodeagent.model.kubevirt import MDEVS, PERMITTED, KubeVirtCR
from nodeagent.model.spec import API_VERSION, DeviceRule, PciRule, UsbRule
from nodeagent.policy import permitted

if TYPE_CHECKING:
    import argparse

_LISTS = ("pciHostDevices", "mediatedDevices", "usb")  # what is below permittedHostDevices
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_TOLD = "the daemon:1: "  # where values that stand in no file are said to be


def run(options: argparse.Namespace) -> int:
    """Print the configuration, and what is not in it.

    :raises ConfigError: if the file has nothing that could be translated.
    """
    path = options.translated
    sources = [each for document in manifests.read(path) for each in _parts(document, path)]
    if not sources:
        raise ConfigError(
            f"{path}: it is neither of KubeVirt nor of a device plugin that is known here",
            "give a KubeVirt CR, its permittedHostDevices, or a file of a plugin (docs/migrating.md)",
        )
    document, notes = _document(sources)
    text = manifests.written(document)
    if options.output == "json":
        text = output.formed("json", document)
    return output.answer(text, *(f"{path}: {note}" for note in notes))


def _parts(document: Any, path: str) -> Iterator[dict[str, Any]]:
    """What can be translated: in a ConfigMap each of its texts may be a file of its own."""
    if not isinstance(document, dict):
        return
    if document.get("kind") == "ConfigMap":
        texts = document.get("data")
        for name, text in texts.items() if isinstance(texts, dict) else ():
            for each in manifests.parsed(str(text), f"{path}: {name}"):
                yield from _parts(each, path)
    elif device_plugins.is_known(document) or _is_kubevirts(document):
        yield document


def _is_kubevirts(document: dict[str, Any]) -> bool:
    keys = ("spec", "configuration", PERMITTED, MDEVS, *_LISTS)
    return document.get("kind") == kubevirt.KIND or any(key in document for key in keys)


def _document(sources: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    rules, mdevs, notes = list[Rule](), dict[str, Any](), list[str]()
    for source in sources:
        if device_plugins.is_known(source):
            found = device_plugins.translate(source)
        else:
            cr = _cr(source)
            found = _permitted(cr)
            mdevs |= _mdevs(cr)
        rules += found.rules
        notes += found.notes
    if mdevs and (fault := _fault([], mdevs)) is not None:
        notes.append(f"{MDEVS}: {fault.what.removeprefix(_TOLD)}; {fault.hint}")
        mdevs = {}
    if mdevs:
        notes.append("mdevs.manage is not set: set it to true once virt-handler makes no mdevs any more")
    usable = _usable(rules, notes)
    document = {"apiVersion": API_VERSION, "resources": usable} | ({"mdevs": mdevs} if mdevs else {})
    return document, notes


def _cr(source: dict[str, Any]) -> KubeVirtCR:
    """The CR that a file is or has a part of. :raises ConfigError: if it cannot be used at all."""
    whole = source
    if "kind" not in source and "spec" not in source:
        part = {PERMITTED: source} if any(key in source for key in _LISTS) else source
        whole = {"spec": {"configuration": part.get("configuration", part)}}
    cr = kubevirt.cr(whole)
    if cr.fault is not None:
        raise ConfigError(cr.fault.what, cr.fault.hint)
    return cr


def _permitted(cr: KubeVirtCR) -> Translation:
    """Rules for all entries, as if another plugin than virt-handler's were to provide them."""
    if cr.permitted is None:
        return Translation((), tuple(f"{each.about}: {each.what}; {each.hint}" for each in cr.refused))
    notes: list[str] = []
    all_external = replace(cr, permitted=tuple(each._replace(external=True) for each in cr.permitted))
    entries = permitted.entries(all_external, Configuration())
    notes += [f"{each.about}: {each.what}; {each.hint}" for each in (*cr.refused, *entries.findings)]
    inside = {each.resource for each in cr.permitted if not each.external}
    if shown := ", ".join(rule.name for rule in entries.rules if rule.name in inside):
        notes.append(
            f"set externalResourceProvider: true in the CR, or virt-handler offers them too: {shown}"
        )
    return Translation(tuple(map(_plain, entries.rules)), tuple(notes))


def _plain(rule: DeviceRule) -> Rule:
    if isinstance(rule, PciRule):
        by_vendor: dict[str, list[str]] = {}
        for selector in rule.selectors:
            by_vendor.setdefault(selector.vendors[0], []).extend(selector.devices)
        return {"name": rule.name, "pci": [{"vendors": [v], "devices": ids} for v, ids in by_vendor.items()]}
    if isinstance(rule, UsbRule):
        picked = [{"vendors": list(each.vendors), "products": list(each.products)} for each in rule.selectors]
        return {"name": rule.name, "usb": picked, "bundle": rule.bundle}
    return {"name": rule.name, "mdev": [{"names": [name for each in rule.selectors for name in each.names]}]}


def _mdevs(cr: KubeVirtCR) -> dict[str, Any]:
    """Types to make, without the leave to make them."""
    if cr.mdevs is None:
        return {}
    nodes = [
        {"nodeSelector": dict(node.labels), "types": [each.name for each in node.types]}
        for node in cr.mdevs.nodes
    ]
    found = {"types": [each.name for each in cr.mdevs.types], "nodes": nodes}
    return {key: value for key, value in found.items() if value}


def _usable(rules: list[Rule], notes: list[str]) -> list[Rule]:
    """The rules that go together with those before them; of the others it is said why not."""
    if _fault(rules) is None:
        return rules
    kept: list[Rule] = []
    for rule in rules:
        fault = _fault([*kept, rule])
        if fault is None:
            kept.append(rule)
        else:
            notes.append(f"{rule['name']}: {fault.what.removeprefix(_TOLD)}; {fault.hint}")
    return kept


def _fault(rules: list[Rule], mdevs: Mapping[str, Any] = NOTHING) -> ConfigError | None:
    """Why these are no configuration; None if they are one."""
    values = {"resources": rules} | {f"mdevs.{key}": value for key, value in mdevs.items()}
    try:
        config.from_values([config.Value(key, value, "") for key, value in values.items()], {})
    except ConfigError as error:
        return error
    return None
