# SPDX-License-Identifier: Apache-2.0
"""The objects of the fake API server: a few kinds, one resource version, recent events, and patches.

The resource version increases with each change, as in etcd. Old events can be removed (``compact``): a watch
from an older version must list the objects again.

Supported patches: JSON Patch (RFC 6902) with add, remove, replace and test on objects; JSON Merge Patch
(RFC 7396); and strategic merge patches for lists of conditions, which are merged by type. This module does
not use HTTP.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from nodeagent.base.latest import Latest

Object = dict[str, Any]
Lists = Mapping[str, Callable[[list[Object], list[Object]], list[Object]]]


class Kind(NamedTuple):
    """A kind of object. ``api`` is group and version as in objects; ``plural`` is its name in URL paths."""

    api: str
    name: str
    plural: str
    namespaced: bool

    @property
    def root(self) -> str:
        """Return the path prefix of the API group."""
        return f"/apis/{self.api}" if "/" in self.api else f"/api/{self.api}"


KUBEVIRTS = Kind("kubevirt.io/v1", "KubeVirt", "kubevirts", True)
VMIS = Kind("kubevirt.io/v1", "VirtualMachineInstance", "virtualmachineinstances", True)
VMS = Kind("kubevirt.io/v1", "VirtualMachine", "virtualmachines", True)
NODES = Kind("v1", "Node", "nodes", False)
EVENTS = Kind("v1", "Event", "events", True)
RESOURCE_SLICES = Kind("resource.k8s.io/v1", "ResourceSlice", "resourceslices", False)
RESOURCE_CLAIMS = Kind("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", True)
DEVICE_CLASSES = Kind("resource.k8s.io/v1", "DeviceClass", "deviceclasses", False)
_OF_DRA = (RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_CLASSES)
KINDS: Mapping[tuple[str, str], Kind] = {
    (kind.root, kind.plural): kind for kind in (KUBEVIRTS, VMIS, VMS, NODES, EVENTS, *_OF_DRA)
}


class Change(NamedTuple):
    """A watch event: ``type`` is ADDED, MODIFIED or DELETED."""

    version: int
    kind: Kind
    type: str
    object: Object


class Store:
    """All objects by kind, namespace and name. Callers must not change returned objects."""

    def __init__(self) -> None:
        self.changes: Latest[int] = Latest(0)  # touched at any change, also of faults
        self.version = 1
        self._objects: dict[tuple[Kind, str, str], Object] = {}
        self._history: list[Change] = []
        self._forgotten = 0  # events up to this version

    def put(self, kind: Kind, given: Object) -> Object:
        """Create or replace an object; return it as stored."""
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
        """Delete an object. :raises KeyError: if it does not exist."""
        gone = copy.deepcopy(self._objects.pop((kind, namespace, name)))
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._changed(kind, "DELETED", gone)

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """Return the object; None if it does not exist."""
        return self._objects.get((kind, namespace, name))

    def all(self, kind: Kind, namespace: str = "") -> Iterator[Object]:
        """Yield all objects of a kind, in one namespace or in all."""
        for (each, within, _), found in sorted(self._objects.items(), key=lambda item: item[0]):
            if each == kind and namespace in ("", within):
                yield found

    def since(self, kind: Kind, version: int) -> list[Change] | None:
        """Return the events after a version; None if they are compacted."""
        if version < self._forgotten:
            return None
        return [change for change in self._history if change.kind == kind and change.version > version]

    def compact(self) -> None:
        """Remove all recorded events."""
        self._history.clear()
        self._forgotten = self.version

    def _changed(self, kind: Kind, type_: str, given: Object) -> None:
        self._history.append(Change(self.version, kind, type_, given))
        self.changes.touch()


class Unpatchable(Exception):
    """Raised when a patch is invalid or does not apply to the object."""


def apply_merge_patch(target: Any, patch: Any, lists: Lists | None = None) -> Any:
    """Return the object with the patch applied; null removes a key. Items of ``lists`` are merged by key."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif lists is not None and name in lists:
            merged[name] = lists[name](merged.get(name) or [], value)
        else:
            merged[name] = apply_merge_patch(merged.get(name), value, lists)
    return merged


def apply_strategic_patch(target: Any, patch: Any) -> Any:
    """Return the object with the patch applied; of conditions, only the types in the patch change."""
    return apply_merge_patch(target, patch, {"conditions": _conditions})


def _conditions(before: list[Object], patch: list[Object]) -> list[Object]:
    made = {each["type"]: each for each in before}
    for each in patch:
        if each.get("$patch") == "delete":
            made.pop(each["type"], None)
        else:
            made[each["type"]] = apply_merge_patch(made.get(each["type"]), each)
    return list(made.values())


def apply_json_patch(target: Object, operations: Any) -> Object:
    """Return the object after all operations. :raises Unpatchable: if one fails; then none is applied."""
    made = copy.deepcopy(target)
    for operation in operations if isinstance(operations, list) else [operations]:
        try:
            _operate(made, operation)
        except (KeyError, TypeError) as error:
            raise Unpatchable(f"the operation {operation!r} does not fit: {error!r}") from error
    return made


def _operate(made: Any, operation: Any) -> None:
    *way, last = [_word(each) for each in operation["path"].split("/")[1:]]
    parent = made
    for word in way:
        parent = parent[word]
    match operation["op"]:
        case "add":
            parent[last] = operation["value"]
        case "replace":
            _ = parent[last]
            parent[last] = operation["value"]
        case "remove":
            del parent[last]
        case "test" if parent[last] == operation["value"]:
            pass
        case other:
            raise Unpatchable(f"the operation {other} failed, or is not known here")


def _word(text: str) -> str:
    """Return a decoded JSON pointer component (RFC 6901, section 4)."""
    return text.replace("~1", "/").replace("~0", "~")
