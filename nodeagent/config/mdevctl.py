# SPDX-License-Identifier: Apache-2.0
"""Imports the definitions of mdevctl: ``/etc/mdevctl.d/<parent>/<uuid>``, one JSON file for each device.

Only devices that mdevctl itself starts at boot (``"start": "auto"``) are created. An invalid file causes a
warning, and the other files are used, so that one file cannot make all devices of the node unavailable. The
device of an invalid file and its parent still belong to mdevctl: nodeagent creates nothing there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from nodeagent.base import files, hints
from nodeagent.config.problems import Invalid
from nodeagent.model.configuration import MdevctlDefinitions
from nodeagent.model.ids import mdev_uuid
from nodeagent.model.spec import MdevDefinition

DIRECTORY = "/etc/mdevctl.d"
_SCRIPTS = "scripts.d"  # older mdevctl releases keep their hooks in this directory
_LARGEST = 64 * 1024  # bytes


def read(directory: str, warnings: list[str]) -> MdevctlDefinitions:
    """Return the definitions below a directory by parent and UUID; invalid files add to ``warnings``."""
    wanted, uuids, reserved = list[MdevDefinition](), set[str](), set[str]()
    for parent in _names(directory, warnings):
        for name in _names(f"{directory}/{parent}", warnings):
            path = f"{directory}/{parent}/{name}"
            uuid = mdev_uuid(name)
            if uuid is None:
                warnings.append(f"{path} is not used: its name is not a UUID; name it as mdevctl does")
                continue
            uuids.add(uuid)
            try:
                definition = parse(parent, uuid, _text(path))
            except Invalid as invalid:
                warnings.append(f"{path} is not used: {invalid.what}; {invalid.hint}")
                reserved.add(parent)
                continue
            first = next((each for each in wanted if each.uuid == uuid), None)
            if definition is not None and first is not None:
                text = f"{uuid} is also defined on {first.parent}; undefine one of the two mdevs"
                warnings.append(f"{path} is not used: {text}")
                reserved.add(parent)
            elif definition is not None:
                wanted.append(definition)
    return MdevctlDefinitions(tuple(wanted), frozenset(uuids), frozenset(reserved))


def directories(directory: str) -> list[str]:
    """Return the directories of definitions: the given one and its subdirectory for each parent."""
    below = (f"{directory}/{name}" for name in _names(directory, []))
    return [directory, *(path for path in below if os.path.isdir(path))]  # noqa: PTH112  text in, text out


def parse(parent: str, uuid: str, text: str) -> MdevDefinition | None:
    """Return the definition in a file; None if the device is only started manually.

    :raises Invalid: if the file is not a definition, or uses a feature that nodeagent does not support.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"it is not valid JSON: {error}", "define it again with: mdevctl define") from error
    if not isinstance(data, Mapping):
        raise Invalid("it contains no JSON object", "define it again with: mdevctl define")
    return _definition(uuid, parent, data)


def _definition(uuid: str, parent: str, data: Mapping[str, Any]) -> MdevDefinition | None:
    type_id = data.get("mdev_type")
    if not isinstance(type_id, str) or not type_id.strip() or "/" in type_id:
        raise Invalid("its mdev_type is no type", "define it again with: mdevctl define")
    if not isinstance(data.get("start"), str):
        raise Invalid("its start mode is missing", "define it again with: mdevctl define")
    if data["start"] != "auto":
        return None
    if data.get("attrs"):
        raise Invalid("it sets attributes, which nodeagent does not write", "leave this device to mdevctl")
    return MdevDefinition(uuid, parent, type_id.strip())


def _names(directory: str, warnings: list[str]) -> list[str]:
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        warnings.append(f"{directory} is not used: {hints.strerror(error)}; {hints.for_errno(error, 'list')}")
        return []
    return [name for name in names if not name.startswith(".") and name != _SCRIPTS]


def _text(path: str) -> str:
    try:
        return files.read_regular(path, _LARGEST).decode()
    except (IsADirectoryError, files.NotRegular) as error:
        raise Invalid(
            "it is not a regular file",
            "mdevctl keeps one file per device: remove everything else from this directory",
        ) from error
    except OSError as error:
        raise Invalid(
            f"it cannot be read: {hints.strerror(error)}", hints.for_errno(error, "read")
        ) from error
    except UnicodeDecodeError as error:
        raise Invalid("it is not valid UTF-8", "define it again with: mdevctl define") from error
