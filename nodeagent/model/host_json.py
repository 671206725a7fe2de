# SPDX-License-Identifier: Apache-2.0
"""A Host as plain data and back: what ``scan -o json`` prints, and ``--host FILE`` reads.

Keys are those of ``model.plain``, and all of the Host's fields are there. A table of records is a list, since
each one tells its own key: its first field. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from nodeagent.base.errors import ConfigError, bounded
from nodeagent.model import plain
from nodeagent.model.host import Host
from nodeagent.model.spec import API_VERSION

HEADING = {"apiVersion": API_VERSION, "kind": "Host"}
_FORMER = {"format": "nodeagent-host/v1"}


def dump(host: Host) -> dict[str, Any]:
    """The plain data of a host."""
    parts = {plain.camel(name): _plain(getattr(host, name), wanted) for name, wanted in _parts().items()}
    return {**HEADING, **parts}


def load(data: Any) -> Host:
    """The host of plain data. :raises ConfigError: if it is none."""
    if not isinstance(data, Mapping) or not (_begins(data, HEADING) or _begins(data, _FORMER)):
        raise ConfigError(
            "this is no saved host: its kind is not Host", "make one with: nodeagent scan -o json"
        )
    try:
        return _host(data)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        why = bounded(" ".join(str(error).split()))  # keys of the file are in it, which may have lines
        raise ConfigError(
            f"the saved host cannot be read: {why}", "make it anew with: nodeagent scan -o json"
        ) from error


def _begins(data: Mapping[Any, Any], heading: Mapping[str, str]) -> bool:
    return all(data.get(key) == text for key, text in heading.items())


def schema() -> dict[str, Any]:
    """The JSON Schema of what ``dump`` makes."""
    from nodeagent.model import schemas  # here: for the documentation alone

    definitions: dict[str, Any] = {}
    parts = {
        plain.camel(name): schemas.part(wanted, definitions)
        if (record := _record(wanted)) is None
        else {"type": "array", "items": schemas.part(record, definitions)}
        for name, wanted in _parts().items()
    }
    return schemas.document(Host, HEADING, parts, tuple(parts), definitions)


@cache
def _parts() -> Mapping[str, Any]:
    """Field of a Host → its type; what is short comes first, for people who read a saved host."""
    types = get_type_hints(Host)
    names = [part.name for part in fields(Host) if part.compare]
    return {name: types[name] for name in sorted(names, key=lambda name: _record(types[name]) is not None)}


def _record(wanted: Any) -> type | None:
    """The class of the records in a table that is keyed by their first field; None for all else."""
    origin = get_origin(wanted)
    if origin is None or not issubclass(origin, Mapping):
        return None
    record = get_args(wanted)[1]
    return record if isinstance(record, type) else None


def _plain(part: Any, wanted: Any) -> Any:
    if isinstance(part, frozenset):
        return sorted(part)
    if not isinstance(part, Mapping):
        return part
    if _record(wanted) is not None:
        return [plain.dump(each) for each in part.values()]
    return {key: [plain.dump(each) for each in several] for key, several in part.items()}


def _host(data: Mapping[str, Any]) -> Host:
    modern = {**data, "functions": [_modern(each) for each in data.get("functions", ())]}
    keys = {name: plain.camel(name) for name in _parts()}
    given = {name: key for name, key in keys.items() if key in modern}
    return Host(**{name: _part(_parts()[name], modern[key], key) for name, key in given.items()})


def _part(wanted: Any, data: Any, key: str) -> Any:
    record = _record(wanted)
    if record is None:
        return plain.value(wanted, data, key)
    first = next(iter(get_type_hints(record)))
    several = (plain.value(record, each, key) for each in plain.value(list[Any], data, key))
    return {getattr(each, first): each for each in several}


def _modern(function: Any) -> Any:
    """A function; a file of former times has ``vgpuType`` alone, and there "0" is no type."""
    if not isinstance(function, Mapping) or "vgpuType" not in function:
        return function
    vgpu_type = function["vgpuType"]
    return {"vgpu": vgpu_type is not None, **function, "vgpuType": None if vgpu_type == "0" else vgpu_type}
