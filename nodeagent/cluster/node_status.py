# SPDX-License-Identifier: Apache-2.0
"""The two parts of a Node's status that nodeagent writes: its own condition, and counts of stale resources.

The patch of a condition is a strategic one: it changes the condition of that type, and the kubelet's stay.
The kubelet leaves a "0" for each name for which it once had a device plugin, for ever (``MachineInfo`` in
pkg/kubelet/nodestatus/setters.go); ``agent.cluster.stale`` decides which of them are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from nodeagent.cluster.api import STRATEGIC_PATCH, Object, Session
from nodeagent.cluster.events import timestamp

_COUNTS = ("capacity", "allocatable")


class Condition(NamedTuple):
    """``status`` is True or False, as a text; ``since`` when it became so, as Kubernetes writes it."""

    status: str
    reason: str
    message: str
    since: str = ""

    def equals(self, other: Condition | None) -> bool:
        """True if the other has the same text, whenever it began."""
        return other is not None and self[:3] == other[:3]


def find_condition(node: Mapping[str, Any], type_: str) -> Object | None:
    """The condition of that type as the Node has it, if it does."""
    listed = _status(node).get("conditions")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and each.get("type") == type_:
            return each
    return None


def read_condition(node: Mapping[str, Any], type_: str) -> Condition | None:
    """The same as a ``Condition``."""
    found = find_condition(node, type_)
    if found is None:
        return None
    fields = (found.get(name) for name in ("status", "reason", "message", "lastTransitionTime"))
    return Condition(*(field if isinstance(field, str) else "" for field in fields))


async def write_condition(session: Session, node: str, type_: str, condition: Condition, now: float) -> None:
    """Set it. :raises ClusterUnavailable: if it is not known to be set."""
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
    """Remove it. :raises ClusterUnavailable: if it is not known to be removed."""
    await _patch_condition(session, node, {"type": type_, "$patch": "delete"})


async def _patch_condition(session: Session, node: str, entry: Object) -> None:
    body = {"status": {"conditions": [entry]}}
    await session.patch(f"/api/v1/nodes/{node}/status", body, STRATEGIC_PATCH)


def counts(node: Mapping[str, Any], names: Collection[str]) -> dict[str, Object]:
    """Capacity and allocatable of these resources, as the Node has them, without empty parts."""
    status = _status(node)
    parts = {key: status[key] for key in _COUNTS if isinstance(status.get(key), Mapping)}
    found = {key: {name: part[name] for name in names if name in part} for key, part in parts.items()}
    return {key: part for key, part in found.items() if part}


def zero_counts(node: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """The names of which capacity and allocatable are 0."""
    found = counts(node, listed := tuple(names))
    return tuple(name for name in listed if all(found.get(key, {}).get(name) == "0" for key in _COUNTS))


async def remove_counts(session: Session, node: Mapping[str, Any], name: str) -> None:
    """Remove the name from the Node, if it is this very Node, and both counts are 0 still.

    :raises ClusterUnavailable: if it is not known to be removed; with the status 422 if a condition is not
        met any more.
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
