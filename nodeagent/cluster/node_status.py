# SPDX-License-Identifier: Apache-2.0
"""Writes two parts of a Node's status: nodeagent's own condition, and the removal of stale resources.

A condition is written with a strategic merge patch, which leaves conditions of other types unchanged. For
each resource that ever had a device plugin, the kubelet keeps the resource with the count 0 in the Node for
ever (``MachineInfo`` in pkg/kubelet/nodestatus/setters.go); ``agent.cluster.stale`` decides which of them to
remove.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from nodeagent.cluster.api import STRATEGIC_PATCH, Object, Session
from nodeagent.cluster.events import timestamp

_COUNTS = ("capacity", "allocatable")


class Condition(NamedTuple):
    """A Node condition. ``status`` is "True" or "False"; ``since`` is the time of its last change."""

    status: str
    reason: str
    message: str
    since: str = ""

    def equals(self, other: Condition | None) -> bool:
        """Return True if both conditions have the same status and texts, even if their times differ."""
        return other is not None and self[:3] == other[:3]


def find_condition(node: Mapping[str, Any], type_: str) -> Object | None:
    """Return the condition of that type in the Node; None if there is none."""
    listed = _status(node).get("conditions")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and each.get("type") == type_:
            return each
    return None


def read_condition(node: Mapping[str, Any], type_: str) -> Condition | None:
    """Return the condition of that type in the Node as a ``Condition``."""
    found = find_condition(node, type_)
    if found is None:
        return None
    fields = (found.get(name) for name in ("status", "reason", "message", "lastTransitionTime"))
    return Condition(*(field if isinstance(field, str) else "" for field in fields))


async def write_condition(session: Session, node: str, type_: str, condition: Condition, now: float) -> None:
    """Set the condition. :raises ClusterUnavailable: if the server has not confirmed the write."""
    entry = {
        "type": type_,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": timestamp(now),
        "lastTransitionTime": condition.since or timestamp(now),
    }
    await _patch_condition(session, node, entry)


async def remove_condition(session: Session, node: str, type_: str) -> None:
    """Remove the condition. :raises ClusterUnavailable: if the server has not confirmed the removal."""
    await _patch_condition(session, node, {"type": type_, "$patch": "delete"})


async def _patch_condition(session: Session, node: str, entry: Object) -> None:
    body = {"status": {"conditions": [entry]}}
    await session.patch(f"/api/v1/nodes/{node}/status", body, STRATEGIC_PATCH)


def counts(node: Mapping[str, Any], names: Collection[str]) -> dict[str, Object]:
    """Return the Node's capacity and allocatable of these resources, without empty parts."""
    status = _status(node)
    parts = {key: status[key] for key in _COUNTS if isinstance(status.get(key), Mapping)}
    found = {key: {name: part[name] for name in names if name in part} for key, part in parts.items()}
    return {key: part for key, part in found.items() if part}


def zero_counts(node: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names whose capacity and allocatable are both 0."""
    found = counts(node, listed := tuple(names))
    return tuple(name for name in listed if all(found.get(key, {}).get(name) == "0" for key in _COUNTS))


async def remove_counts(session: Session, node: Mapping[str, Any], name: str) -> None:
    """Remove the resource from the Node, if the Node is the same object and both counts are still 0.

    :raises ClusterUnavailable: if the removal was not confirmed; with status 422 if a condition was not
        met.
    """
    metadata = node["metadata"]
    key = name.replace("~", "~0").replace("/", "~1")  # in a JSON pointer (RFC 6901, section 3)
    places = [f"/status/{part}/{key}" for part in _COUNTS]
    operations = [
        {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
        *({"op": "test", "path": place, "value": "0"} for place in places),
        *({"op": "remove", "path": place} for place in places),
    ]
    await session.patch(f"/api/v1/nodes/{metadata['name']}/status", operations)


def _status(node: Mapping[str, Any]) -> Mapping[str, Any]:
    status = node.get("status")
    return status if isinstance(status, Mapping) else {}
