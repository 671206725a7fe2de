# SPDX-License-Identifier: Apache-2.0
"""What the cluster said last, on disk: after a reboot the node goes on with it until the API server answers.

The objects stay as they came, as far as they matter, so that one reader understands both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.base import log
from nodeagent.base.files import StateFile
from nodeagent.cluster import conditions

PATH = "/var/lib/nodeagent/cluster.json"
CONDITION = "DevicesUsable"  # the type of the condition that this node writes
_METADATA = ("name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp")


class Record(NamedTuple):
    """The KubeVirt CR and the labels of the Node; None: never seen. ``at``: seconds since 1970."""

    kubevirt: Mapping[str, Any] | None = None
    labels: Mapping[str, str] | None = None
    at: float = 0.0


def _record(document: dict[str, Any]) -> Record:
    """:raises TypeError: if it is of other types: a daemon of another version may have written it."""
    found = Record(**document)
    labels = {} if found.labels is None else found.labels
    texts = isinstance(labels, dict) and all(isinstance(each, str) for each in labels.values())
    if not (texts and isinstance(found.kubevirt, dict | None) and isinstance(found.at, int | float)):
        raise TypeError("it has other types")
    return found


FILE = StateFile(
    Record(),
    _record,
    Record._asdict,
    "without it the node does not know the cluster's wishes after a reboot",
    log.CLUSTER_RECORD_BROKEN,
)


def of_cr(document: Mapping[str, Any]) -> dict[str, Any]:
    """A KubeVirt CR without what nobody reads."""
    parts = {key: document[key] for key in ("kind", "metadata", "spec") if key in document}
    status = document.get("status")
    phase = {"phase": status.get("phase")} if isinstance(status, Mapping) else {}
    return _named(parts) | {"status": phase}


def of_node(document: Mapping[str, Any]) -> dict[str, Any]:
    """Names, labels and our condition of a Node: its status changes every few minutes, and is large."""
    named = _named({"metadata": document.get("metadata")})
    own = conditions.of_node(document, CONDITION)
    return named if own is None else named | {"status": {"conditions": [own]}}


def _named(parts: dict[str, Any]) -> dict[str, Any]:
    metadata = parts.get("metadata")
    if isinstance(metadata, Mapping):
        parts["metadata"] = {key: metadata[key] for key in _METADATA if key in metadata}
    return parts
