# SPDX-License-Identifier: Apache-2.0
"""A Host as plain data and back: what ``scan -o json`` prints, and ``--host FILE`` reads.

Keys are the field names in camel case; what is unknown or empty is left out, so a saved host is short and
an older reader finds its way through a newer file. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from nodeagent.base.errors import ConfigError
from nodeagent.model.host import Group, Hints, Host, Mdev, MdevType, PciFunction, Recovery
from nodeagent.model.ids import GroupNumber, PciAddress

T = TypeVar("T")

FORMAT = "nodeagent-host/v1"


def dump(host: Host) -> dict[str, Any]:
    """The plain data of a host."""
    return {
        "format": FORMAT,
        "release": host.release,
        "iommu": host.iommu,
        "vfioLoaded": host.vfio_loaded,
        "numaNodes": sorted(host.numa_nodes),
        "nodes": sorted(host.nodes),
        "functions": [_plain(function) for function in host.functions.values()],
        "groups": [_plain(group) for group in host.groups.values()],
        "mdevs": [_plain(mdev) for mdev in host.mdevs.values()],
        "mdevParents": {
            parent: [_plain(kind) for kind in kinds] for parent, kinds in host.mdev_parents.items()
        },
    }


def load(data: Any) -> Host:
    """The host of plain data; raises ConfigError if it is none."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ConfigError(
            f"this is no saved host: its format is not {FORMAT}", "make one with: nodeagent scan -o json"
        )
    try:
        return _host(data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"the saved host cannot be read: {error}", "make it anew with: nodeagent scan -o json"
        ) from error


def _host(data: Mapping[str, Any]) -> Host:
    functions = [_function(each) for each in data.get("functions", ())]
    groups = [_built(Group, each) for each in data.get("groups", ())]
    mdevs = [_built(Mdev, each) for each in data.get("mdevs", ())]
    return Host(
        functions={PciAddress(function.address): function for function in functions},
        groups={GroupNumber(group.number): group for group in groups},
        mdevs={mdev.uuid: mdev for mdev in mdevs},
        mdev_parents={
            parent: tuple(_built(MdevType, kind) for kind in kinds)
            for parent, kinds in data.get("mdevParents", {}).items()
        },
        nodes=frozenset(_checked("nodes", data.get("nodes", ()), tuple[str, ...])),
        numa_nodes=frozenset(_checked("numaNodes", data.get("numaNodes", ()), tuple[int, ...])),
        iommu=bool(data.get("iommu")),
        vfio_loaded=bool(data.get("vfioLoaded")),
        release=_checked("release", data.get("release"), str | None),
    )


def _function(data: Mapping[str, Any]) -> PciFunction:
    hints = data.get("hints")
    recovery = data.get("recovery")
    vgpu_type = data.get("vgpuType")  # once it alone was saved, and "0" was no type
    special = ("hints", "recovery", "vgpu", "vgpuType")
    return _built(
        PciFunction,
        {key: value for key, value in data.items() if key not in special},
        hints=_built(Hints, hints) if hints is not None else None,
        recovery=Recovery(recovery) if recovery is not None else None,
        vgpu=data.get("vgpu", vgpu_type is not None),
        vgpu_type=None if vgpu_type == "0" else vgpu_type,
    )


def _built(kind: Callable[..., T], data: Mapping[str, Any], **ready: Any) -> T:
    wanted = _fields(kind)
    given = {_snake(key): (key, value) for key, value in data.items()}
    values = {name: _checked(*item, wanted[name]) for name, item in given.items() if name in wanted}
    return kind(**values, **ready)


@lru_cache
def _fields(kind: Callable[..., object]) -> Mapping[str, Any]:
    """The fields of one of the model's dataclasses, with their types."""
    return get_type_hints(kind)


def _checked(name: str, value: Any, wanted: Any) -> Any:
    """The value, lists as tuples. :raises TypeError: if it is not of the wanted type."""
    found = _tupled(value)
    if not _fits(found, wanted):
        raise TypeError(f"{name} cannot be {value!r:.60}")
    return found


def _fits(value: Any, wanted: Any) -> bool:
    """True if the value is of a type such as the model's fields have."""
    if isinstance(wanted, NewType):
        return _fits(value, wanted.__supertype__)
    inner = get_args(wanted)
    if get_origin(wanted) in (UnionType, Union):
        return any(_fits(value, each) for each in inner)
    if get_origin(wanted) is not tuple:
        return type(value) is wanted  # True is no number here
    if not isinstance(value, tuple):
        return False
    each = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
    return len(each) == len(value) and all(map(_fits, value, each))


def _plain(value: Any) -> dict[str, Any]:
    """The fields that say something; a zero does (group 0, NUMA node 0)."""
    told = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {
        _camel(name): _simple(item)
        for name, item in told
        if item is not None and item is not False and item != ()
    }


def _simple(value: Any) -> Any:
    if isinstance(value, Hints):
        return _plain(value)
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name)
