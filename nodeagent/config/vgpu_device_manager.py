# SPDX-License-Identifier: Apache-2.0
"""Imports a file of NVIDIA's vgpu-device-manager: named configurations, one of which applies to a node.

The checks are those of the tool itself (api/spec/v1): version v1, no unknown keys, counts above 0, type
names in the documented spelling. A device filter that cannot match is also an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.base.errors import ConfigError
from nodeagent.config import yaml_lines
from nodeagent.config.codec import Entry, Items, Member, Scalar, Table, described
from nodeagent.model.configuration import VgpuConfiguration
from nodeagent.model.spec import CardTypes, WantedType
from nodeagent.policy import naming

_TIME_SLICED = re.compile(r"[A-Z0-9]+(-[a-zA-Z]+)*-(0|[1-9][0-9]*)[ABCQ]")
_MIG = re.compile(r"[A-Z0-9]+-[1-9]-(0|[1-9][0-9]*)[ABCQ]((NO)?ME|MEALL|GFX)?")
_FILTER = re.compile(r"0x([0-9a-f]{4})([0-9a-f]{4})(?::0x([0-9a-f]{4})([0-9a-f]{4}))?")
_TEXT_OF_CONFIG_MAP = "kubectl get configmap NAME -o jsonpath='{.data.config\\.yaml}' prints the file"
_KEYS = ("devices", "device-filter", "vgpu-devices")


def read(path: str) -> tuple[VgpuConfiguration, ...]:
    """Return all configurations of the file.

    :raises ConfigError: if the file does not exist, or with file and line of the first error.
    """
    table = yaml_lines.read(path)
    if table is None:
        raise ConfigError(f"{path}: no such file", "give the path of a vgpu-device-manager configuration")
    return parse(table)


def parse(table: Table) -> tuple[VgpuConfiguration, ...]:
    """Return all configurations of a file, in the order of the file.

    :raises ConfigError: with file and line of the first error.
    """
    if any(member.key == "kind" for member in table.members):
        raise _error(table, "it is a Kubernetes object, not the file in it", _TEXT_OF_CONFIG_MAP)
    top = _members(table, ("version", "vgpu-configs"), table)
    version = top.get("version")
    if not isinstance(version, Scalar) or version.text != "v1":
        raise _error(version or table, "its version is not v1", "begin with the line 'version: v1'")
    configurations = top.get("vgpu-configs")
    if not isinstance(configurations, Table) or not configurations.members:
        raise _error(configurations or table, "vgpu-configs names no configuration", "write 'LABEL: [...]'")
    return tuple(_configuration(member) for member in configurations.members)


def _configuration(member: Member) -> VgpuConfiguration:
    if not isinstance(member.entry, Items):
        raise _error(member.entry, f'"{member.key}" is not a list', "write a list of entries")
    if not member.entry.entries:
        raise _error(member.entry, f'"{member.key}" has no entries', "write one with vgpu-devices: {}")
    return VgpuConfiguration(member.key, tuple(_cards(entry) for entry in member.entry.entries))


def _cards(entry: Entry) -> CardTypes:
    values = _members(entry, _KEYS, entry)
    for key in ("devices", "vgpu-devices"):
        if key not in values:
            raise _error(entry, f"{key} is missing", "write it")
    types = _types(values["vgpu-devices"])
    filters = tuple(_filters(values["device-filter"])) if "device-filter" in values else ()
    return CardTypes(_positions(values["devices"]), filters, types)


def _positions(entry: Entry) -> tuple[int, ...] | None:
    if isinstance(entry, Scalar) and entry.text == "all":
        return None
    if isinstance(entry, Items):
        return tuple(_number(item, 0) for item in entry.entries)
    raise _error(entry, f"devices is {described(entry)}", "write all, or a list such as [0, 1]")


def _filters(entry: Entry) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Yield each device filter with its device and vendor id, and the subsystem ids (None for any)."""
    if isinstance(entry, Scalar) and not entry.text:
        return
    for item in entry.entries if isinstance(entry, Items) else (entry,):
        match = _FILTER.fullmatch(item.text.lower()) if isinstance(item, Scalar) else None
        if match is None:
            raise _error(item, f"{described(item)} is no filter", 'write it such as "0x1EB810DE"')
        device, vendor, subsystem_device, subsystem_vendor = match.groups()
        yield vendor, device, subsystem_vendor, subsystem_device


def _types(entry: Entry) -> tuple[WantedType, ...]:
    if isinstance(entry, Scalar) and entry.null:
        return ()
    if not isinstance(entry, Table):
        raise _error(entry, f"vgpu-devices is {described(entry)}", "write it such as {T4-1Q: 16}")
    for member in entry.members:
        if not _TIME_SLICED.fullmatch(member.key) and not _MIG.fullmatch(member.key):
            raise _error(
                member.entry, f'"{member.key}" is no vGPU type', "write it such as T4-1Q or A100-1-5CME"
            )
    return tuple(WantedType(member.key, _number(member.entry, 1), short=True) for member in entry.members)


def _number(entry: Entry, least: int) -> int:
    if isinstance(entry, Scalar) and re.fullmatch(r"[0-9]{1,4}", entry.text) and int(entry.text) >= least:
        return int(entry.text)
    raise _error(entry, f"{described(entry)} is not a number from {least} on", "write decimal digits")


def _members(entry: Entry, keys: tuple[str, ...], at: Entry) -> dict[str, Entry]:
    if not isinstance(entry, Table):
        raise _error(at, f"expected a table of keys, found {described(entry)}", f"keys: {', '.join(keys)}")
    for member in entry.members:
        if member.key not in keys:
            raise ConfigError(f'{member.place}: "{member.key}" is unknown', naming.suggest(member.key, keys))
    return {member.key: member.entry for member in entry.members}


def _error(at: Entry, what: str, hint: str) -> ConfigError:
    return ConfigError(f"{at.place}: {what}", hint)
