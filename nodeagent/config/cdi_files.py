# SPDX-License-Identifier: Apache-2.0
"""Reads CDI specification files that other tools have written to /etc/cdi and /var/run/cdi, in YAML or JSON.

The rules are those of container runtimes (package pkg/cdi of the reference implementation, 1.0):
subdirectories are not read, and a file is used as a whole or not at all. Unknown keys are ignored. An
invalid part of a file is reported with its place, and only the devices of that file become unusable.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nodeagent.base import files, hints
from nodeagent.base.errors import ConfigError
from nodeagent.config import yaml_lines
from nodeagent.config.codec import Entry, Items, Scalar
from nodeagent.config.problems import Invalid
from nodeagent.model.nodes import CdiDevice, CdiFile

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")  # a file in the later directory overrides the earlier one
_ENDINGS = (".json", ".yaml")
_MOST = yaml_lines.MAX_BYTES
_TOGETHER = 16 * _MOST  # limit for all files of one directory
_NODES = 20_000  # limit for one file; nodes repeated by YAML aliases count each time
_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[01]\.\d+\.\d+")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*|0x[0-9a-fA-F]+|0o?[0-7]+|(\d+\.\d*|\.\d+)([eE][-+]?\d+)?)")
_SWITCHES = {"true": True, "false": False}
_SLASHES = re.compile(r"/(\.?/)+")  # /dev//x and /dev/./x are /dev/x

_Named = tuple[str, bool]
"""The path of a device node, and whether the file specifies its major and minor number."""


class Directory:
    """One pass over a CDI directory, run in a thread; from the attributes, the waiting task sees whether it
    hangs.

    ``progress`` is incremented after each file. ``at`` is the path that is being read. ``parsing`` is true
    while the thread parses a file; no system call can block the thread then.
    """

    def __init__(self, prefix: str, rank: int, known: Mapping[str, CdiFile]) -> None:
        """Begin a pass; files that are unchanged since the previous pass (``known``) are not read again."""
        self.path = DIRECTORIES[rank]
        self.progress = 0
        self.at = self.path
        self.parsing = False
        self._prefix = prefix.rstrip("/")
        self._rank = rank
        self._known = known
        self._left = _TOGETHER

    def read(self) -> dict[str, CdiFile]:
        """Return the files by path; if the directory cannot be read, one entry with its error. May block."""
        try:
            names = sorted(os.listdir(f"{self._prefix}{self.path}"))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            return {self.path: CdiFile(self.path, fault=hints.strerror(error), rank=self._rank)}
        found: dict[str, CdiFile] = {}
        for name in names:
            if os.path.splitext(name)[1] in _ENDINGS:  # noqa: PTH122  text in, text out
                path = self.at = f"{self.path}/{name}"
                file = self._file(path)
                if file is not None:
                    found[path] = file
            self.progress += 1
        return found

    def _file(self, path: str) -> CdiFile | None:
        known = self._known.get(path, CdiFile(path, rank=self._rank))
        now: tuple[int, ...] = ()
        try:
            now = stamp(f"{self._prefix}{path}")
            if now == known.stamp:
                return known
            content = self._content(f"{self._prefix}{path}")
            self.parsing = True
            kind, devices = parsed(content, path)
        except (FileNotFoundError, IsADirectoryError):
            return None
        except files.NotRegular:
            return known._replace(fault="it is not a regular file", stamp=now)
        except OSError as error:
            return known._replace(fault=hints.strerror(error), stamp=())
        except Invalid as invalid:
            return known._replace(fault=invalid.what, stamp=now)
        finally:
            self.parsing = False
        return CdiFile(path, kind, devices, "", self._rank, now)

    def _content(self, path: str) -> bytes:
        content = files.read_regular(path, _MOST)
        self._left -= len(content)
        if len(content) > _MOST:
            raise Invalid("it is larger than 1 MiB", "")
        if self._left < 0:
            raise Invalid(f"the files of {self.path} are larger than 16 MiB together", "")
        return content


def stamp(path: str) -> tuple[int, ...]:
    """Return a value that changes when the file is written. :raises OSError: if stat(2) fails."""
    status = os.stat(path)  # noqa: PTH116  text in, text out
    return status.st_ino, status.st_mtime_ns, status.st_size


def parsed(content: bytes, path: str) -> tuple[str, tuple[CdiDevice, ...]]:
    """Return the CDI kind and the devices of a file.

    :raises Invalid: with the place, if it is not a CDI file.
    """
    spec = _table(_plain_data(content, path), "it")
    if _VERSION.fullmatch(_text(spec, "cdiVersion", "")) is None:
        raise Invalid(f"cdiVersion {spec['cdiVersion']} is not known", "")
    kind = _text(spec, "kind", "")
    vendor, slash, named = kind.partition("/")
    if not slash or not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(named):
        raise Invalid(f'kind "{kind}" is not vendor/class', "")
    walk = _Walk()
    common = walk.nodes(spec, "")
    devices = tuple(
        walk.device(each, f"devices[{n}]", common) for n, each in enumerate(_list(spec, "devices", ""))
    )
    if not devices:
        raise Invalid("it has no devices", "")
    return kind, devices


class _Walk:
    """Parses the devices of one file, and limits the number of device nodes."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._left = _NODES

    def device(self, entry: Any, place: str, common: tuple[_Named, ...]) -> CdiDevice:
        """Return one device. :raises Invalid: if the entry is not a device, or its name is already used."""
        device = _table(entry, place)
        name = _text(device, "name", place)
        if _NAME.fullmatch(name) is None:
            raise Invalid(f'{place}: "{name}" is not a valid device name', "")
        if name in self._names:
            raise Invalid(f'{place}: a second device "{name}"', "")
        self._names.add(name)
        found = dict.fromkeys((*common, *self.nodes(device, place)))
        edits = json.dumps(device.get("containerEdits"), sort_keys=True)
        return CdiDevice(
            name,
            tuple(path for path, numbered in found if not numbered),
            hashlib.sha256(edits.encode()).hexdigest()[:12],
            tuple(path for path, numbered in found if numbered),
        )

    def nodes(self, holder: Mapping[str, Any], place: str) -> tuple[_Named, ...]:
        """Return the host paths of the device nodes; a node with a type and a major number may be absent on
        the host.
        """
        where = f"{place}.containerEdits" if place else "containerEdits"
        edits = _table(holder.get("containerEdits") or {}, where)
        found: list[_Named] = []
        for number, entry in enumerate(_list(edits, "deviceNodes", where)):
            self._left -= 1
            if self._left < 0:
                raise Invalid(f"{where}: too many device nodes", "")
            at = f"{where}.deviceNodes[{number}]"
            node = _table(entry, at)
            path = _text(node, "path", at)
            numbered = bool(node.get("type") and node.get("major"))
            found.append((_SLASHES.sub("/", str(node.get("hostPath") or path)), numbered))
        return tuple(found)


def _table(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(f"{place} is not a mapping of keys to values", "")
    return value


def _list(holder: Mapping[str, Any], key: str, place: str) -> list[Any]:
    value = holder.get(key)
    if not isinstance(value, list | None):
        raise Invalid(f"{place + '.' if place else ''}{key} is no list", "")
    return value or []


def _text(holder: Mapping[str, Any], key: str, place: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str) or not value:
        raise Invalid(
            f"{place + '.' if place else ''}{key} is {'missing' if value is None else 'no text'}", ""
        )
    return value


def _plain_data(content: bytes, path: str) -> Any:
    try:
        if content.lstrip().startswith(b"{"):
            return json.loads(content)
    except (ValueError, RecursionError):
        pass  # YAML flow mappings also begin with a brace
    try:
        return _plain(yaml_lines.parse(content, path))
    except ConfigError as error:
        raise Invalid(error.what.removeprefix(f"{path}:").removeprefix(path).lstrip(": "), "") from error


def _plain(entry: Entry) -> Any:
    """Return the entry as plain data; booleans and numbers get their own types, other scalars stay text."""
    if isinstance(entry, Items):
        return [_plain(each) for each in entry.entries]
    if not isinstance(entry, Scalar):
        return {member.key: _plain(member.entry) for member in entry.members}
    if entry.null:
        return None
    if entry.plain and entry.text in _SWITCHES:
        return _SWITCHES[entry.text]
    return len(entry.text) if entry.plain and _NUMBER.fullmatch(entry.text) else entry.text


def files_in(found: Mapping[str, CdiFile], directory: str) -> Iterator[CdiFile]:
    """Return the files of one directory."""
    return (file for path, file in found.items() if path.rpartition("/")[0] == directory)
