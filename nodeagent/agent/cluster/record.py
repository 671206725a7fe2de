# SPDX-License-Identifier: Apache-2.0
"""What the cluster said last, on disk: after a reboot the node goes on with it until the API server answers.

The objects stay as they came, as far as they matter, so that one reader understands both. How it lies on
disk is ``sealed``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.base import log, sealed
from nodeagent.base.sealed import Broken
from nodeagent.cluster import conditions

PATH = "/var/lib/nodeagent/cluster.json"
CONDITION = "DevicesUsable"  # the type of the condition that this node writes
_HINT = "without it the node does not know the cluster's wishes after a reboot"
_METADATA = ("name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp")


class Record(NamedTuple):
    """The KubeVirt CR and the labels of the Node; None: never seen. ``at``: seconds since 1970."""

    kubevirt: Mapping[str, Any] | None = None
    labels: Mapping[str, str] | None = None
    at: float = 0.0


def read(path: str) -> Record:
    """What is on record; nothing, if there is no file. Blocks.

    :raises Broken: if it is not what was written; it is set aside then.
    """
    try:
        return _read(path)
    except Broken:
        sealed.set_aside(path)
        raise


def look(path: str) -> Record:
    """What is on record; nothing, if it is damaged or not ours to read: the file stays as it is. Blocks."""
    try:
        return _read(path)
    except Broken:
        return Record()


def said_before(path: str) -> Record:
    """What is on record; nothing, and a line in the log, if that is damaged. Blocks."""
    try:
        return read(path)
    except Broken as error:
        log.event(log.CLUSTER_RECORD_BROKEN, error=str(error))
        return Record()


def write(path: str, record: Record) -> None:
    """Replace the file. Blocks. :raises KernelRefused: if it cannot be written."""
    sealed.write(path, record._asdict(), _HINT)


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


def _read(path: str) -> Record:
    content = sealed.look(path)
    try:
        found = Record() if content is None else Record(**content)
        if not _fits(found):
            raise TypeError("it has other types")
    except TypeError as error:
        raise Broken(f"{path} is damaged; it is kept as {path}{sealed.ASIDE}") from error
    return found


def _fits(found: Record) -> bool:
    """True if it is of the types that are written: a daemon of another version may have done so."""
    labels = {} if found.labels is None else found.labels
    texts = isinstance(labels, dict) and all(isinstance(each, str) for each in labels.values())
    return texts and isinstance(found.kubevirt, dict | None) and isinstance(found.at, int | float)
