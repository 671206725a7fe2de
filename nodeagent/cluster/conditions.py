# SPDX-License-Identifier: Apache-2.0
"""One condition of a Node, as node-problem-detector writes its own: read from the Node, and patched.

The patch is a strategic one: it changes the condition of that type, and the kubelet's stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.cluster.events import stamp
from nodeagent.cluster.session import STRATEGIC_PATCH, Object, Session


class Condition(NamedTuple):
    """``status`` is True or False, as a text; ``since`` when it became so, as Kubernetes writes it."""

    status: str
    reason: str
    message: str
    since: str = ""

    def says(self, other: Condition | None) -> bool:
        """True if the other says the same, whenever."""
        return other is not None and self[:3] == other[:3]


def of_node(node: Mapping[str, Any], type_: str) -> Object | None:
    """The condition of that type as the Node has it, if it does."""
    status = node.get("status")
    listed = status.get("conditions") if isinstance(status, Mapping) else None
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and each.get("type") == type_:
            return each
    return None


def read(given: Object | None) -> Condition | None:
    """What it says; None if there is none."""
    if given is None:
        return None
    fields = (given.get(name) for name in ("status", "reason", "message", "lastTransitionTime"))
    return Condition(*(field if isinstance(field, str) else "" for field in fields))


async def write(session: Session, node: str, type_: str, condition: Condition, now: float) -> None:
    """Set it. :raises ClusterUnavailable: if it was not set, as far as is known."""
    entry = {
        "type": type_,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": stamp(now),
        "lastTransitionTime": condition.since or stamp(now),
    }
    await _patch(session, node, entry)


async def remove(session: Session, node: str, type_: str) -> None:
    """Take it away. :raises ClusterUnavailable: if it was not taken away, as far as is known."""
    await _patch(session, node, {"type": type_, "$patch": "delete"})


async def _patch(session: Session, node: str, entry: Object) -> None:
    body = {"status": {"conditions": [entry]}}
    await session.patch(f"/api/v1/nodes/{node}/status", body, STRATEGIC_PATCH)
