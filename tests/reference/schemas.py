# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of records as ``model.plain`` writes them, with their docstrings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin

from nodeagent.model import plain

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
_SIMPLE = {str: "string", int: "integer", bool: "boolean", float: "number", NoneType: "null"}


def of(record: type, heading: Mapping[str, str]) -> Schema:
    """The schema of a document that is such a record, after its heading."""
    definitions: dict[str, Schema] = {}
    own = _object(record, definitions)
    return document(record, heading, own["properties"], own["required"], definitions)


def document(
    record: type,
    heading: Mapping[str, str],
    properties: Mapping[str, Schema],
    required: Iterable[str],
    definitions: Mapping[str, Schema],
) -> Schema:
    """The schema of a document with such a heading, and the record's first words."""
    return {
        "$schema": DIALECT,
        "description": _described(record),
        "type": "object",
        "properties": {key: {"const": text} for key, text in heading.items()} | dict(properties),
        "required": [*heading, *required],
        "$defs": definitions,
    }


def _object(record: type, definitions: dict[str, Schema]) -> Schema:
    fields = plain.fields_of(record)
    return {
        "description": _described(record),
        "type": "object",
        "properties": {field.key: _property(field, definitions) for field in fields},
        "required": [field.key for field in fields if not field.has_default],
    }


def _described(record: type) -> str:
    """Return the docstring of a record without its marks."""
    return " ".join((record.__doc__ or "").replace("``", "").split())


def _property(field: plain.RecordField, definitions: dict[str, Schema]) -> Schema:
    schema = form(field, definitions)
    simple = field.has_default and (field.default is None or type(field.default) in _SIMPLE)
    return schema | {"default": field.default} if simple else schema


def form(field: plain.RecordField, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of a field."""
    wanted = tuple[get_args(field.type)[1], ...] if field.listed else field.type  # type: ignore[misc]
    return part(wanted, definitions)


def part(wanted: Any, definitions: dict[str, Schema]) -> Schema:
    """The schema of what a field of this type holds; records are put to the definitions."""
    if isinstance(wanted, NewType):
        return part(wanted.__supertype__, definitions)
    if wanted is Any:
        return {}
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (UnionType, Union):
        return {"anyOf": [part(each, definitions) for each in inner]}
    if origin is not None:
        return _collection(origin, inner, definitions)
    if wanted in _SIMPLE:
        return {"type": _SIMPLE[wanted]}
    if issubclass(wanted, Enum):
        return {"type": "string", "enum": [each.value for each in wanted]}
    if wanted.__name__ not in definitions:
        definitions[wanted.__name__] = {}  # a record may hold others of its own kind
        definitions[wanted.__name__] = _object(wanted, definitions)
    return {"$ref": f"#/$defs/{wanted.__name__}"}


def _collection(origin: type, inner: tuple[Any, ...], definitions: dict[str, Schema]) -> Schema:
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": part(inner[1], definitions)}
    if origin is tuple and inner[-1] is not Ellipsis:
        items = [part(each, definitions) for each in inner]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    return {"type": "array", "items": part(inner[0], definitions)}
