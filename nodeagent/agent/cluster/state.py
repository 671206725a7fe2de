# SPDX-License-Identifier: Apache-2.0
"""The KubeVirt CR and the labels of the Node that are in force on this node.

``follow`` updates this state with each answer of the API server and saves it, so that it stays in force after
a reboot. The KubeVirt CR is saved as the API server sent it, so that one parser reads saved and received CRs.
If the CR disappears or is invalid, the last valid one stays in force; if the Node disappears, its last labels
stay in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.base.state import CLUSTER, Section
from nodeagent.cluster import kubevirt, node_status
from nodeagent.model.kubevirt import SECTIONS, ClusterConfig, KubeVirtCR
from nodeagent.model.problem import Problem

CONDITION = "DevicesUsable"  # the type of the condition that this node writes
_METADATA = ("name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp")

Objects = Mapping[str, Mapping[str, Any]]


class ClusterState(NamedTuple):
    """``document`` is the CR in force, ``config`` its contents and the labels; None: never read.

    ``saved``: when it was saved to disk, in seconds since 1970. ``doubts``: warnings about parts in force
    that the API server no longer has or that are invalid there.
    """

    document: Mapping[str, Any] | None = None
    config: ClusterConfig = ClusterConfig()
    saved: float = 0.0
    doubts: tuple[str, ...] = ()

    @property
    def objects(self) -> tuple[Mapping[str, Any] | None, Mapping[str, str] | None]:
        """The KubeVirt CR and the labels of the Node."""
        return self.document, self.config.labels


def _parse(document: dict[str, Any]) -> ClusterState:
    """Parse the saved state.

    :raises TypeError: if a value has another type: a daemon of another version may have written it.
    """
    cr, labels, saved = document.get("kubevirt"), document.get("labels"), document.get("at", 0.0)
    texts = all(isinstance(each, str) for each in (labels or {}).values())
    types = isinstance(cr, dict | None) and isinstance(labels, dict | None) and isinstance(saved, int | float)
    if not (texts and types and document.keys() <= {"kubevirt", "labels", "at"}):
        raise TypeError("it has other types")
    return ClusterState(cr, ClusterConfig(None if cr is None else kubevirt.cr(cr), labels), saved)


def _plain(state: ClusterState) -> dict[str, Any]:
    return {"kubevirt": state.document, "labels": state.config.labels, "at": state.saved}


SECTION = Section(
    CLUSTER,
    ClusterState(),
    _parse,
    _plain,
    "after a reboot nodeagent does not know the last KubeVirt CR",
)


def update(last: ClusterState, crs: Objects | None, nodes: Objects | None, node: str) -> ClusterState:
    """Return the state after these answers (None: no answer of the API server yet). ``node``: the name of
    this node.
    """
    document, cr, doubt = _update_cr(last, crs)
    labels, missing = _update_labels(last, nodes, node)
    doubts = tuple(line for line in (doubt, missing) if line)
    return ClusterState(document, ClusterConfig(cr, labels), doubts=doubts)


def _update_cr(
    last: ClusterState, crs: Objects | None
) -> tuple[Mapping[str, Any] | None, KubeVirtCR | None, str]:
    """The KubeVirt CR in force, its contents, and a warning. An unchanged CR is not parsed again."""
    same = last.document, last.config.kubevirt
    if crs is None:
        return *same, ""
    chosen = kubevirt.chosen(crs.values())
    if chosen is None:
        gone = "the cluster has no deployed KubeVirt CR any more: the last CR stays in force"
        return *same, gone if last.document is not None else ""
    if chosen == last.document:
        return *same, ""
    cr = kubevirt.cr(chosen)
    if cr.fault is not None:
        return *same, f"the KubeVirt CR is not in force: {cr.fault.message}"
    return chosen, cr, ""


def _update_labels(
    last: ClusterState, nodes: Objects | None, node: str
) -> tuple[Mapping[str, str] | None, str]:
    if nodes is None:
        return last.config.labels, ""
    metadata = nodes.get(node, {}).get("metadata")
    if not isinstance(metadata, Mapping):
        return last.config.labels, f"the cluster has no Node named {node}: set node.name"
    labels = metadata.get("labels")
    if not isinstance(labels, Mapping):
        return {}, ""
    return {str(key): text for key, text in labels.items() if isinstance(text, str)}, ""


def trim_cr(document: Mapping[str, Any]) -> dict[str, Any]:
    """The KubeVirt CR without the parts that nodeagent does not use."""
    parts = {key: document[key] for key in ("kind", "metadata", "spec") if key in document}
    status = document.get("status")
    phase = {"phase": status.get("phase")} if isinstance(status, Mapping) else {}
    return _trim_metadata(parts) | {"status": phase}


def trim_node(document: Mapping[str, Any]) -> dict[str, Any]:
    """A Node with only its name, labels, counts and our condition: other parts are large and change often."""
    status = document.get("status")
    found = status if isinstance(status, Mapping) else {}
    counts = {key: found[key] for key in ("capacity", "allocatable") if key in found}
    own = node_status.find_condition(document, CONDITION)
    kept = counts if own is None else counts | {"conditions": [own]}
    named = _trim_metadata({"metadata": document.get("metadata")})
    return named | {"status": kept} if kept else named


def _trim_metadata(parts: dict[str, Any]) -> dict[str, Any]:
    metadata = parts.get("metadata")
    if isinstance(metadata, Mapping):
        parts["metadata"] = {key: metadata[key] for key in _METADATA if key in metadata}
    return parts


def with_place(problem: Problem) -> Problem:
    """The problem of a part of the CR that is not in force, with its place in the message."""
    return problem._replace(subject=place(problem)).with_place()


def place(problem: Problem) -> str:
    """The place of the problem in the KubeVirt CR, or the name of the setting."""
    return f"KubeVirt CR: {problem.subject}" if problem.subject.startswith(SECTIONS) else problem.subject
