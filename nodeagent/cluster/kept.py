# SPDX-License-Identifier: Apache-2.0
"""The objects of one kind as a list and the events after it tell them, and the version up to which they do.

What comes is checked for no more than is needed to keep it: names and versions. Of each object that is kept
which ``keep`` makes of it, so that what nobody reads neither takes memory nor wakes anyone. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.cluster import refusals
from nodeagent.cluster.session import Object

Keep = Callable[[Object], Object]


def whole(given: Object) -> Object:
    """All of an object but what no reader wants: who wrote which field last."""
    metadata = {name: value for name, value in given["metadata"].items() if name != "managedFields"}
    return given | {"metadata": metadata}


def key(given: Object) -> str:
    """``namespace/name``, or ``name``. :raises ClusterUnavailable: if it has no name."""
    metadata = given.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    namespace = metadata.get("namespace", "") if isinstance(metadata, dict) else ""
    if not (isinstance(name, str) and name and isinstance(namespace, str)):
        raise refusals.unreadable("an object without a name")
    return f"{namespace}/{name}" if namespace else name


class Kept:
    """``version`` is None until there was a list, and again after it has expired; the objects stay."""

    def __init__(self, keep: Keep) -> None:
        self.version: str | None = None
        self.objects: Mapping[str, Object] | None = None
        self._keep = keep

    def replace(self, answer: Object) -> None:
        """Take a list. :raises ClusterUnavailable: if it is none; nothing has changed then."""
        items = answer.get("items")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise refusals.unreadable("no list of objects")
        version = _version(answer)
        self.objects = {key(item): self._keep(item) for item in items}
        self.version = version

    def apply(self, event: Object) -> None:
        """Take an event of a watch.

        :raises Expired: if it says that the version is too old.
        :raises ClusterUnavailable: if it says another error, or nothing that can be read.
        """
        kind, given = event.get("type"), event.get("object")
        if not isinstance(given, dict):
            raise refusals.unreadable("an event without an object")
        if kind == "ERROR":
            raise self._error(given)
        version = _version(given)
        if kind in ("ADDED", "MODIFIED"):
            self.objects = {**(self.objects or {}), key(given): self._keep(given)}
        elif kind == "DELETED":
            gone = key(given)
            self.objects = {name: each for name, each in (self.objects or {}).items() if name != gone}
        elif kind != "BOOKMARK":
            raise refusals.unreadable("an event of an unknown type")
        self.version = version

    def expire(self) -> None:
        """The version is too old: the next thing is a list."""
        self.version = None

    def _error(self, status: Object) -> Exception:
        code = status.get("code")
        text = str(status.get("message", "")).encode()
        return refusals.of("a watch", code if isinstance(code, int) else 0, text)


def _version(given: dict[str, Any]) -> str:
    metadata = given.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not (isinstance(version, str) and version):
        raise refusals.unreadable("an object without a version")
    return version
