# SPDX-License-Identifier: Apache-2.0
"""Derives the shapes of records from their fields, and checks keys that exclude each other.

Each record field annotated with ``plain.Key`` is a key of the file, and the field's type determines its
shape. An entry of ``resources`` becomes one of several records, one for each kind of rule; ``_rule`` selects
it.

Selectors of a list are combined with OR, keys of one selector with AND, values of one key with OR. An empty
selector would match every function of the host, so it is an error.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from nodeagent.config import words
from nodeagent.config.codec import Field, ListOf, MapOf, Record, Shape
from nodeagent.config.problems import Invalid
from nodeagent.model import plain
from nodeagent.model.configuration import Alias
from nodeagent.model.nodes import is_pattern
from nodeagent.model.spec import (
    CdiRule,
    DeviceRule,
    NodePath,
    NodeRule,
    PciRule,
    PciSelector,
    Rule,
    SriovRule,
    UsbSelector,
    WantedType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.model.plain import Key


def fields(record: type, section: str = "") -> tuple[Field, ...]:
    """Return the keys of a record in the order of its fields; ``section`` is the prefix of the keys."""
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
    """Return the shape of a table that sets the fields of a record."""
    name = re.sub(r"(?<!^)(?=[A-Z])", " ", record.__name__).lower()  # PassthroughRule: passthrough rule
    check: Callable[[Mapping[str, Any]], None] | None = _check_sriov if record is SriovRule else None
    if record in _SELECTORS.values():
        check = partial(_check_selector, record)
    placed = any(field.name == "place" for field in plain.fields_of(record))
    return Record(name, fields(record), record, check, placed, record in _SHORT)


def _shape(wanted: Any, key: Key) -> Shape:
    """Return the shape of a field with this type."""
    if wanted == tuple[Rule, ...]:
        return ListOf(RESOURCE)
    if wanted == tuple[Alias, ...]:
        return MapOf(words.WORDS[key.word], words.WORDS[key.word])
    inner = [each for each in get_args(wanted) if each is not NoneType]
    if get_origin(wanted) is tuple and get_origin(inner[0]) is tuple:
        return MapOf(words.WORDS[key.word], words.WORDS[f"{key.word} value"])
    if get_origin(wanted) is tuple:
        return ListOf(_shape(inner[0], key))
    of = inner[0] if inner else wanted  # "X | None" has the shape of X
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


def _check_selector(selector: type, written: Mapping[str, Any]) -> None:
    if not any(written.values()):
        keys = ", ".join(field.key for field in plain.fields_of(selector))
        every = _EVERY.get(selector)
        hint = f"name at least one of {keys}" + (f'; to select every device: {every}: ["*"]' if every else "")
        raise Invalid("an empty selector would match every device", hint)


def _check_sriov(written: Mapping[str, Any]) -> None:
    if any("pfs" in each for each in written.get("match", ()) if isinstance(each, dict)):
        raise Invalid("pfs selects VFs, but numVFs is set on their PF", "select the PF by addresses")


def _check_node(written: Mapping[str, Any]) -> None:
    paths = [each if isinstance(each, dict) else {"path": each} for each in written.get("paths", ())]
    if ("path" in written) == bool(paths):
        raise Invalid(
            "it needs either path or paths", "write path for one node, paths for patterns or several"
        )
    per_path = written.get("perPath") is True
    if per_path and "path" in written:
        raise Invalid("perPath has no effect with one path", "write paths, with a pattern as the first")
    if per_path and not is_pattern(paths[0]["path"]):
        raise Invalid(
            f"perPath needs a pattern as the first path; {paths[0]['path']} is no pattern",
            "write the pattern first; each device node that matches it is one device",
        )
    for number, each in enumerate(paths):
        _check_path(each, leads=per_path and number == 0, may_limit=per_path and number > 0)


def _check_path(written: Mapping[str, Any], leads: bool, may_limit: bool) -> None:
    path, inside = written["path"], written.get("mountPath", "/")
    if is_pattern(path) and not inside.endswith("/") and not leads:
        raise Invalid(
            f"all device nodes that match {path} would be {inside} in a container",
            f"end mountPath with a slash: {inside}/",
        )
    if "limit" in written and not may_limit:
        raise Invalid(
            f"limit means nothing for {path}",
            "with perPath, set count for the first path, and limit only for the other paths",
        )


def _find_selectors() -> dict[str, type]:
    """Return the record type of the selectors of each kind of device, by the key of the kind."""
    fields = (each for rule in get_args(DeviceRule) for each in plain.fields_of(rule))
    return {
        field.written.name: get_args(field.type)[0]
        for field in fields
        if field.name == "selectors" and field.written is not None
    }


_SELECTORS: Mapping[str, type] = _find_selectors()
_KINDS: Mapping[str, type[Rule]] = {
    **dict(zip(_SELECTORS, get_args(DeviceRule), strict=True)),
    "node": NodeRule,
    "cdiDevices": CdiRule,
}
_SHORT = frozenset({NodePath, WantedType})
"""Records for which a single word is accepted as the value of the first key."""
_EVERY: Mapping[type, str] = {PciSelector: "addresses", UsbSelector: "ports"}
"""The key of a selector that takes patterns."""


def _rule(**written: Any) -> Rule:
    """Return a rule of the kind that the entry names; without a kind, a PCI rule that matches no device."""
    kind = next((kind for kind in _KINDS if kind in written), None)
    if kind is None:
        return PciRule(**written)
    make: Callable[..., Rule] = _KINDS[kind]
    own = written.pop(kind)
    return make(**(own if isinstance(own, dict) else {"selectors": own}), **written)


def _check_resource(written: Mapping[str, Any]) -> None:
    kinds = [kind for kind in _KINDS if kind in written]
    if len(kinds) > 1:
        raise Invalid(f"{' and '.join(kinds)} in one resource", "write two resources with two names")
    rule = _KINDS[kinds[0]] if kinds else PciRule
    for option in (each for each in _OPTIONS if each in written and each not in _keys(rule)):
        kind, *others = _find_kinds_with(option)
        if others:
            raise Invalid(f"{option} means nothing for {rule.words}", f"remove {option}")
        hint = f"remove {option}, or pick devices with {kind}"
        raise Invalid(f"{option} is for {_KINDS[kind].words}", hint)


def _find_kinds_with(option: str) -> list[str]:
    """Return the kinds of devices whose rules have this option."""
    return [kind for kind in _SELECTORS if option in _keys(_KINDS[kind])]


def _keys(rule: type[Rule]) -> frozenset[str]:
    return frozenset(field.key for field in plain.fields_of(rule))


def _resource() -> Record:
    """Return the shape of a ``resources`` entry: the keys of every kind of rule in one table."""
    of_node = {field.key: field for field in fields(NodeRule)}
    node_keys = ("path", "paths", "count", "permissions", "perPath")
    node = Record("device node", tuple(of_node[key] for key in node_keys), dict, _check_node)
    cdi = Record("CDI kind", fields(CdiRule), dict)
    kinds = (
        *(_FLAT[kind]._replace(field=kind, default=None) for kind in _SELECTORS),
        Field("node", "node", node, "shares of device nodes", None),
        Field("cdiDevices", "cdiDevices", cdi, "devices that CDI files on the host define", None),
    )
    options = (  # keys of one kind of rule have no default here: the check rejects them for other kinds
        _FLAT[key] if len(_find_kinds_with(key)) > 1 else _FLAT[key]._replace(default=None)
        for key in _OPTIONS
    )
    return Record("resource", (_FLAT["name"], *kinds, *options), _rule, _check_resource, placed=True)


_FLAT = {field.key: field for rule in get_args(DeviceRule) for field in fields(rule)}
_OPTIONS = tuple(key for key in _FLAT if key != "name" and key not in _SELECTORS)
RESOURCE = _resource()
