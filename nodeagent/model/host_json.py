# SPDX-License-Identifier: Apache-2.0
"""A Host as plain data and back: what ``scan -o json`` prints, and ``--host FILE`` reads.

Keys and what is left out are those of ``model.plain``; devices, groups and mdevs are lists, since each one
tells its own id. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodeagent.base.errors import ConfigError
from nodeagent.model import plain
from nodeagent.model.host import Group, Host, Mdev, MdevType, PciFunction

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
        "functions": [plain.dump(function) for function in host.functions.values()],
        "groups": [plain.dump(group) for group in host.groups.values()],
        "mdevs": [plain.dump(mdev) for mdev in host.mdevs.values()],
        "mdevParents": {
            parent: [plain.dump(mdev_type) for mdev_type in types]
            for parent, types in host.mdev_parents.items()
        },
    }


def load(data: Any) -> Host:
    """The host of plain data. :raises ConfigError: if it is none."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ConfigError(
            f"this is no saved host: its format is not {FORMAT}", "make one with: nodeagent scan -o json"
        )
    try:
        return _host(data)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the saved host cannot be read: {error}", "make it anew with: nodeagent scan -o json"
        ) from error


def _host(data: Mapping[str, Any]) -> Host:
    functions = [_function(each) for each in data.get("functions", ())]
    groups: tuple[Group, ...] = _part(data, "groups", tuple[Group, ...])
    mdevs: tuple[Mdev, ...] = _part(data, "mdevs", tuple[Mdev, ...])
    return Host(
        functions={function.address: function for function in functions},
        groups={group.number: group for group in groups},
        mdevs={mdev.uuid: mdev for mdev in mdevs},
        mdev_parents=plain.value(
            Mapping[str, tuple[MdevType, ...]], data.get("mdevParents", {}), "mdevParents"
        ),
        nodes=_part(data, "nodes", frozenset[str]),
        numa_nodes=_part(data, "numaNodes", frozenset[int]),
        iommu=bool(data.get("iommu")),
        vfio_loaded=bool(data.get("vfioLoaded")),
        release=plain.value(str | None, data.get("release"), "release"),
    )


def _part(data: Mapping[str, Any], key: str, wanted: Any) -> Any:
    return plain.value(wanted, data.get(key, ()), key)


def _function(data: Any) -> PciFunction:
    """A function; a file of former times has ``vgpuType`` alone, and there "0" is no type."""
    if isinstance(data, Mapping) and "vgpuType" in data:
        vgpu_type = data["vgpuType"]
        data = {"vgpu": vgpu_type is not None, **data, "vgpuType": None if vgpu_type == "0" else vgpu_type}
    return plain.load(PciFunction, data)
