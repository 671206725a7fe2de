# SPDX-License-Identifier: Apache-2.0
"""What the stand-in API server has: objects of a few kinds, one version for all, and the events of late.

Versions rise by one with each change, as those of etcd do. Old events can be forgotten (``compact``): who
follows from before that has to list again. Knows no HTTP.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nodeagent.base.latest import Latest

Object = dict[str, Any]


class Kind(NamedTuple):
    """``api`` is group and version as objects name them; ``plural`` is the word of the path."""

    api: str
    name: str
    plural: str
    namespaced: bool

    @property
    def root(self) -> str:
        """Below which its paths are."""
        return f"/apis/{self.api}" if "/" in self.api else f"/api/{self.api}"


KUBEVIRTS = Kind("kubevirt.io/v1", "KubeVirt", "kubevirts", True)
VMIS = Kind("kubevirt.io/v1", "VirtualMachineInstance", "virtualmachineinstances", True)
VMS = Kind("kubevirt.io/v1", "VirtualMachine", "virtualmachines", True)
NODES = Kind("v1", "Node", "nodes", False)
EVENTS = Kind("v1", "Event", "events", True)
KINDS: Mapping[tuple[str, str], Kind] = {
    (kind.root, kind.plural): kind for kind in (KUBEVIRTS, VMIS, VMS, NODES, EVENTS)
}


class Change(NamedTuple):
    """One event of a watch: ``type`` is ADDED, MODIFIED or DELETED."""

    version: int
    kind: Kind
    type: str
    object: Object


class Store:
    """All objects by kind, namespace and name. What it gives away is nobody's to change."""

    def __init__(self) -> None:
        self.changes: Latest[int] = Latest(0)  # touched when anything differs, the faults included
        self.version = 1
        self._objects: dict[tuple[Kind, str, str], Object] = {}
        self._history: list[Change] = []
        self._forgotten = 0  # events up to this version

    def put(self, kind: Kind, given: Object) -> Object:
        """Make an object, or replace the one of that name; the object as it is kept."""
        metadata = given["metadata"]
        place = (kind, metadata.get("namespace", ""), metadata["name"])
        old = self._objects.get(place)
        self.version += 1
        uid = old["metadata"]["uid"] if old else str(uuid.UUID(int=self.version))
        made = copy.deepcopy(given) | {"apiVersion": kind.api, "kind": kind.name}
        made["metadata"] |= {"uid": uid, "resourceVersion": str(self.version)}
        self._objects[place] = made
        self._changed(kind, "MODIFIED" if old else "ADDED", made)
        return made

    def delete(self, kind: Kind, name: str, namespace: str = "") -> None:
        """Remove an object. :raises KeyError: if there is none."""
        gone = copy.deepcopy(self._objects.pop((kind, namespace, name)))
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._changed(kind, "DELETED", gone)

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """The object, or None."""
        return self._objects.get((kind, namespace, name))

    def all(self, kind: Kind, namespace: str = "") -> Iterator[Object]:
        """All objects of a kind, of one namespace or of all."""
        for (each, within, _), found in sorted(self._objects.items(), key=lambda item: item[0]):
            if each == kind and namespace in ("", within):
                yield found

    def since(self, kind: Kind, version: int) -> list[Change] | None:
        """What has changed after a version; None if that is forgotten."""
        if version < self._forgotten:
            return None
        return [change for change in self._history if change.kind == kind and change.version > version]

    def compact(self) -> None:
        """Forget all events so far."""
        self._history.clear()
        self._forgotten = self.version

    def _changed(self, kind: Kind, type_: str, given: Object) -> None:
        self._history.append(Change(self.version, kind, type_, given))
        self.changes.touch()
