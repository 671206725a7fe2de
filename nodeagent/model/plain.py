# SPDX-License-Identifier: Apache-2.0
"""Converts records (frozen dataclasses, named tuples) to plain data for JSON, and back. Does no I/O.

Keys are the field names in camel case. A field with its default value is omitted, which keeps documents small
and lets an older reader understand newer data. Tuples and frozensets become lists, enumerations their values;
if a field may contain one of several records, the key ``kind`` names its class. Reading plain data rejects
wrong types and ignores unknown keys. The keys of a mapping become texts; a mapping that is ``LISTED`` becomes
a list of its records, whose first field is the key. ``UNSAVED`` fields are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")

KIND = "kind"
_SIMPLE = (str, int, bool, float, NoneType)


class Key(NamedTuple):
    """Annotates the type of a field that is also a key of the configuration file: its help and its values.

    For a text, ``word`` names the format (``config.words``), or ``choices`` lists all values; for a map, both
    describe its keys. For a number or a duration (in seconds), ``bounds`` are the limits. If ``name`` is "",
    the key has the name of the field. ``at_start``: the daemon reads this setting only at its start.
    ``obsolete``: without effect.
    """

    help: str
    word: str = "text"
    choices: tuple[str, ...] = ()
    bounds: tuple[int, int] | tuple[float, float] = (0, 0)
    name: str = ""
    at_start: bool = False
    obsolete: bool = False


LISTED: Final = "listed"
UNSAVED: Final = "unsaved"
"""Annotations of types whose plain form differs from that of the type."""


class RecordField(NamedTuple):
    """A field of a record, and its key in the plain data. ``tagged``: the records in this field contain the
    name of their class.

    ``listed``: as ``LISTED``. ``written``: the key of this field in the configuration file, if there is one.
    """

    name: str
    key: str
    type: Any
    default: Any
    tagged: bool
    listed: bool
    written: Key | None

    @property
    def has_default(self) -> bool:
        """Return True if the field may be omitted."""
        return self.default is not MISSING


def dump(value: object, whole: bool = False) -> dict[str, Any]:
    """Return the plain data of a record; ``whole``: including fields with their default values."""
    result: dict[str, Any] = {}
    for field in fields_of(type(value)):
        item = getattr(value, field.name)
        if whole or item != field.default:
            result[field.key] = _plain(tuple(item.values()) if field.listed else item, field.tagged)
    return result


def load(wanted: type[T], data: Any, path: str = "") -> T:
    """Return the record for plain data of ``dump``; ``path`` is its place in a larger record, for messages.

    :raises TypeError: if a value has another type, or is missing.
    :raises ValueError: if an enumeration or a union has no such member.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"{path or wanted.__name__} is not a mapping of keys to values")
    prefix = path and f"{path}."
    for field in fields_of(wanted):
        if not field.has_default and field.key not in data:
            raise TypeError(f"{prefix}{field.key} is missing")
    present = (field for field in fields_of(wanted) if field.key in data)
    return wanted(
        **{field.name: _field_value(field, data[field.key], prefix + field.key) for field in present}
    )


def _field_value(field: RecordField, data: Any, path: str) -> Any:
    if not field.listed:
        return _value(field.type, data, path)
    record = get_args(field.type)[1]
    first = fields_of(record)[0].name
    records = _collection(tuple, (record, ...), data, path)
    return {getattr(each, first): each for each in records}


def _value(wanted: Any, data: Any, path: str) -> Any:
    """Return the value for a field of any supported type. Raises as ``load`` does."""
    if isinstance(wanted, NewType):
        return _value(wanted.__supertype__, data, path)
    if wanted is Any or type(data) is wanted:
        return data
    origin = get_origin(wanted)
    if origin in (UnionType, Union):
        return _either(get_args(wanted), data, path)
    if origin is not None:
        return _collection(origin, get_args(wanted), data, path)
    if is_record(wanted):
        return load(wanted, data, path)
    if issubclass(wanted, Enum):
        for member in wanted:
            if member.value == data:
                return member
        raise ValueError(f"{path} cannot be {data!r:.60}")
    if wanted is float and type(data) is int:
        return float(data)
    raise TypeError(f"{path} is no text" if wanted is str else f"{path} cannot be {data!r:.60}")


def camel(name: str) -> str:
    """Return ``numa_node`` as ``numaNode``."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _plain(item: Any, tagged: bool) -> Any:
    if type(item) in _SIMPLE:
        return item
    if isinstance(item, Enum):
        return item.value
    if isinstance(item, Mapping):
        return {key: _plain(each, tagged) for key, each in item.items()}
    if isinstance(item, frozenset):
        return sorted(item)
    if is_record(type(item)):
        return {KIND: _kind(type(item)), **dump(item)} if tagged else dump(item)
    if isinstance(item, tuple):
        return [_plain(each, tagged) for each in item]
    return item  # a field that may contain any plain data


def _collection(origin: Any, inner: tuple[Any, ...], data: Any, path: str) -> Any:
    if issubclass(origin, Mapping) and isinstance(data, Mapping):
        return {key: _value(inner[1], each, f"{path}.{key}") for key, each in data.items()}
    if issubclass(origin, Mapping):
        raise TypeError(f"{path} is not a mapping of keys to values")
    if not isinstance(data, list | tuple):
        raise TypeError(f"{path} is no list")
    types = inner if origin is tuple and inner[-1] is not Ellipsis else inner[:1] * len(data)
    if len(types) != len(data):
        raise TypeError(f"{path} cannot be {data!r:.60}")
    items = enumerate(zip(types, data, strict=True))
    return origin(_value(each, item, f"{path}[{number}]") for number, (each, item) in items)


def _either(types: tuple[Any, ...], data: Any, path: str) -> Any:
    if len(classes := _classes(types)) > 1 and isinstance(data, Mapping):
        for each in classes:
            if data.get(KIND) == _kind(each):
                return load(each, data, path)
        raise ValueError(f"{path} cannot be of the kind {data.get(KIND)!r:.60}")
    for each in types:
        if each is type(data):
            return data
    others = [each for each in types if each not in _SIMPLE or each is float]
    if len(others) != 1 or data is None:
        raise TypeError(f"{path} cannot be {data!r:.60}")
    return _value(others[0], data, path)


def fields_of(record: Any) -> tuple[RecordField, ...]:
    """Return the fields of a record, in their order."""
    return _fields_of(record)


@cache
def _fields_of(of: Any) -> tuple[RecordField, ...]:
    hints = get_type_hints(of, include_extras=True)
    if is_dataclass(of):
        defaults = {field.name: _default(field) for field in fields(of)}
    else:
        defaults = {name: of._field_defaults.get(name, MISSING) for name in of._fields}
    found = (_field(name, hints[name], default) for name, default in defaults.items())
    return tuple(field for field in found if field is not None)


def _field(name: str, hint: Any, default: Any) -> RecordField | None:
    wanted, mark = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
    if mark == UNSAVED:
        return None
    key = mark if isinstance(mark, Key) else None
    return RecordField(name, camel(name), wanted, default, _tagged(wanted), mark == LISTED, key)


def is_record(of: Any) -> bool:
    """Return True for the class of a record."""
    return isinstance(of, type) and (is_dataclass(of) or hasattr(of, "_field_defaults"))


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _tagged(wanted: Any) -> bool:
    """Return True if the type allows one of several records, also inside a tuple or a mapping."""
    inner = get_args(wanted)
    union = get_origin(wanted) in (UnionType, Union)
    return (union and len(_classes(inner)) > 1) or any(map(_tagged, inner))


def _classes(types: tuple[Any, ...]) -> list[type]:
    return [each for each in types if is_record(each)]


def _kind(of: type) -> str:
    return of.__name__[0].lower() + of.__name__[1:]
