# SPDX-License-Identifier: Apache-2.0
"""Extended resources as a Node counts them: read from its status, and taken away where both counts are 0.

The kubelet leaves a "0" for each name for which it once had a device plugin, for ever (``MachineInfo`` in
pkg/kubelet/nodestatus/setters.go). Knows neither who gives what, nor what the kubelet still knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nodeagent.cluster.session import Object, Session

NONE = "0"
_COUNTS = ("capacity", "allocatable")


def of_node(node: Mapping[str, Any], names: Collection[str]) -> dict[str, Object]:
    """Capacity and allocatable of these names, as the Node has them; what has none of them is left out."""
    status = node.get("status")
    found = {key: _of(status.get(key), names) for key in _COUNTS} if isinstance(status, Mapping) else {}
    return {key: counts for key, counts in found.items() if counts}


def empty(node: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names of which the Node has 0 and 0: nobody gives anything under them."""
    counts = of_node(node, wanted := tuple(names))
    return tuple(name for name in wanted if all(counts.get(key, {}).get(name) == NONE for key in _COUNTS))


async def remove(session: Session, node: Mapping[str, Any], name: str) -> None:
    """Take the name from the Node, if it is this one, and both counts are 0 still.

    :raises ClusterUnavailable: if it was not taken away, as far as is known; with the status 422 if that is
        not so any more.
    """
    metadata = node["metadata"]
    places = [f"/status/{key}/{_word(name)}" for key in _COUNTS]
    operations = [
        {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
        *({"op": "test", "path": place, "value": NONE} for place in places),
        *({"op": "remove", "path": place} for place in places),
    ]
    await session.patch(f"/api/v1/nodes/{metadata['name']}/status", operations)


def _of(counts: Any, names: Collection[str]) -> Object:
    return {name: counts[name] for name in names if name in counts} if isinstance(counts, Mapping) else {}


def _word(name: str) -> str:
    """A key in a JSON pointer (RFC 6901, section 3)."""
    return name.replace("~", "~0").replace("/", "~1")
