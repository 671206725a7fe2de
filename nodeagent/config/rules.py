# SPDX-License-Identifier: Apache-2.0
"""The shapes of records: derived from their fields, with the checks of keys that do not go together.

A key of the file is a field whose type is annotated with ``plain.Key``; its shape follows from the type. Only
the table of a resource has no record of its own: each kind of rule has one, and ``_rule`` makes it.

A list of selectors is OR, the keys of one selector are AND, the values of a key are OR. A selector without
any value would match every function of the host, so it is an error.
"""

from __future__ import annotations

from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

from nodeagent.config import words
from nodeagent.config.codec import Field, ListOf, MapOf, Record, Shape
from nodeagent.config.problems import Invalid
from nodeagent.model import plain
from nodeagent.model.configuration import Alias
from nodeagent.model.nodes import is_pattern
from nodeagent.model.spec import (
    CdiRule,
    MdevRule,
    MdevSelector,
    NodePath,
    NodeRule,
    NodeTypes,
    PassthroughRule,
    PciRule,
    PciSelector,
    Rule,
    SriovRule,
    UsbRule,
    UsbSelector,
    WantedType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.model.plain import Key


def fields(record: type, section: str = "") -> tuple[Field, ...]:
    """Return the keys of a record, in the order of its fields; those of a section begin with its name."""
    prefix = section and f"{section}."
    return tuple(
        Field(
            f"{prefix}{key.name or each.key}",
            each.name,
            _shape(each.type, key),
            key.help,
            each.default,
            key.at_start,
            key.obsolete,
        )
        for each in plain.fields_of(record)
        if (key := each.written) is not None
    )


def table(record: type) -> Record:
    """Return the shape of a record."""
    form, names = _FORMS[record], {field.name for field in plain.fields_of(record)}
    return Record(form.name, fields(record), record, form.check, "place" in names, form.short)


def _shape(wanted: Any, key: Key) -> Shape:
    """Return the shape of a field of this type."""
    if wanted == tuple[Rule, ...]:
        return ListOf(RESOURCE)
    if wanted == tuple[Alias, ...]:
        return MapOf(words.WORDS[key.word], words.WORDS[key.word])
    inner = [each for each in get_args(wanted) if each is not NoneType]
    if get_origin(wanted) is tuple and get_origin(inner[0]) is tuple:
        return MapOf(words.WORDS[key.word], words.WORDS[f"{key.word} value"])
    if get_origin(wanted) is tuple:
        return ListOf(_shape(inner[0], key))
    of = inner[0] if inner else wanted  # of "X | None" it is X
    if key.choices:
        return words.choice(*key.choices)
    if of is bool:
        return words.FLAG
    if of is int:
        return words.integer(*key.bounds)
    if of is float:
        return words.duration(*key.bounds)
    if of is str:
        return words.WORDS[key.word]
    return words.member(of) if issubclass(of, StrEnum) else table(of)


def _no_selector(what: str, hint: str) -> Callable[[Mapping[str, Any]], None]:
    """Return the check of a selector: it names at least one value."""

    def check(written: Mapping[str, Any]) -> None:
        if not any(written.values()):
            raise Invalid(f"an empty selector would take every {what}", hint)

    return check


def _check_node(written: Mapping[str, Any]) -> None:
    paths = [each if isinstance(each, dict) else {"path": each} for each in written.get("paths", ())]
    if ("path" in written) == bool(paths):
        raise Invalid(
            "it needs either path or paths", "write path for one node, paths for patterns or several"
        )
    per_path = written.get("perPath") is True
    if per_path and "path" in written:
        raise Invalid("perPath means nothing for one path", "write paths, with a pattern as the first")
    if per_path and not is_pattern(paths[0]["path"]):
        raise Invalid(
            f"with perPath the first path leads, and {paths[0]['path']} is no pattern",
            "begin with the pattern that gives a device for each node",
        )
    for number, each in enumerate(paths):
        _check_path(each, leads=per_path and number == 0, may_limit=per_path and number > 0)


def _check_path(written: Mapping[str, Any], leads: bool, may_limit: bool) -> None:
    path, inside = written["path"], written.get("mountPath", "/")
    if is_pattern(path) and not inside.endswith("/") and not leads:
        raise Invalid(
            f"all that {path} means would be {inside} in a container",
            f"let mountPath end with a slash: {inside}/",
        )
    if "limit" in written and not may_limit:
        raise Invalid(
            f"limit means nothing for {path}",
            "it is for what goes with the first path under perPath; count says how many share that",
        )


class _Form(NamedTuple):
    """The name of a record for people, its check, and whether a word alone is the value of its first key."""

    name: str
    check: Callable[[Mapping[str, Any]], None] | None = None
    short: bool = False


_FORMS: Mapping[type, _Form] = {
    PciSelector: _Form(
        "PCI selector",
        _no_selector("function", 'name at least one key; addresses: ["*"] means every function'),
    ),
    MdevSelector: _Form("mdev selector", _no_selector("mdev", "name types or names")),
    UsbSelector: _Form(
        "USB selector", _no_selector("USB device", 'name at least one key; ports: ["*"] means every device')
    ),
    NodePath: _Form("node path", short=True),
    WantedType: _Form("type with count", short=True),
    NodeTypes: _Form("node"),
    PassthroughRule: _Form("binding"),
    SriovRule: _Form("card"),
}

_KINDS: Mapping[str, Callable[..., Rule]] = {
    "pci": PciRule,
    "mdev": MdevRule,
    "usb": UsbRule,
    "node": NodeRule,
    "cdiDevices": CdiRule,
}


def _rule(**written: Any) -> Rule:
    """Return the rule of the kind whose key is written; without one it matches no PCI function."""
    kind = next((kind for kind in _KINDS if kind in written), None)
    if kind is None:
        return PciRule(**written)
    own = written.pop(kind)
    return _KINDS[kind](**(own if isinstance(own, dict) else {"selectors": own}), **written)


def _check_resource(written: Mapping[str, Any]) -> None:
    kinds = [kind for kind in _KINDS if kind in written]
    if len(kinds) > 1:
        raise Invalid(f"{' and '.join(kinds)} in one resource", "write two resources with two names")
    options = [option for option in ("isolation", "iommufd", "cdi") if option in written]
    others = {"node": "a device node", "usb": "USB devices", "cdiDevices": "what CDI files define"}
    named = others.get("".join(kinds))
    if named and options:
        raise Invalid(f"{options[0]} means nothing for {named}", f"remove {options[0]}")
    if stray := [option for option in ("bundle", "force") if option in written and kinds != ["usb"]]:
        raise Invalid(f"{stray[0]} is for USB devices", f"remove {stray[0]}, or pick devices with usb")


def _resource() -> Record:
    """Return the table of a resource: the keys of all kinds of rules, and tables for those of two kinds."""
    flat = {field.key: field for rule in (PciRule, MdevRule, UsbRule) for field in fields(rule)}
    of_node = {field.key: field for field in fields(NodeRule)}
    node_keys = ("path", "paths", "count", "permissions", "perPath")
    node = Record("device node", tuple(of_node[key] for key in node_keys), dict, _check_node)
    cdi = Record("CDI kind", fields(CdiRule), dict)
    kinds = (
        *(flat[kind]._replace(field=kind, default=None) for kind in ("pci", "mdev", "usb")),
        Field("node", "node", node, "shares of device nodes", None),
        Field("cdiDevices", "cdiDevices", cdi, "what CDI files on the host define", None),
    )
    options = (flat[key] for key in ("isolation", "iommufd", "cdi", "topology"))
    of_usb = (flat[key]._replace(default=None) for key in ("bundle", "force"))  # refused for other kinds
    return Record("resource", (flat["name"], *kinds, *options, *of_usb), _rule, _check_resource, placed=True)


RESOURCE = _resource()
