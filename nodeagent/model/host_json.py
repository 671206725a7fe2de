# SPDX-License-Identifier: Apache-2.0
"""A Host as plain data and back: what ``scan -o json`` prints, and ``explain --host FILE`` reads.

Keys are the field names in camel case; what is unknown or empty is left out, so a saved host is short and
an older reader finds its way through a newer file. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

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
        nodes=frozenset(data.get("nodes", ())),
        numa_nodes=frozenset(data.get("numaNodes", ())),
        iommu=bool(data.get("iommu")),
        vfio_loaded=bool(data.get("vfioLoaded")),
        release=data.get("release"),
    )


def _function(data: Mapping[str, Any]) -> PciFunction:
    hints = data.get("hints")
    recovery = data.get("recovery")
    plain = {key: value for key, value in data.items() if key not in ("hints", "recovery")}
    return _built(
        PciFunction,
        plain,
        hints=_built(Hints, hints) if hints is not None else None,
        recovery=Recovery(recovery) if recovery is not None else None,
    )


def _built(kind: Callable[..., T], data: Mapping[str, Any], **ready: Any) -> T:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    given = {_snake(key): value for key, value in data.items()}
    values = {key: _tupled(value) for key, value in given.items() if key in known}
    return kind(**values, **ready)


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
