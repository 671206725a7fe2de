# SPDX-License-Identifier: Apache-2.0
"""What was heard of the cluster last: documents as they came, and the wishes that follow from them.

An answer replaces what it can: a KubeVirt CR that is gone, or makes no sense, leaves the last good one in
force, and so does a Node that is not there. Pure: knows neither the API server nor the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.agent.cluster.record import Record
from nodeagent.cluster import kubevirt
from nodeagent.model.kubevirt import SECTIONS, ClusterWishes, KubeVirtCR
from nodeagent.model.problem import Problem

Objects = Mapping[str, Mapping[str, Any]]


class Heard(NamedTuple):
    """The documents, what they wish, and ``doubts``: whole lines on what stays in force without them."""

    kubevirt: Mapping[str, Any] | None = None
    labels: Mapping[str, str] | None = None
    wishes: ClusterWishes = ClusterWishes()
    doubts: tuple[str, ...] = ()


def before(record: Record) -> Heard:
    """What a daemon before this one has heard."""
    cr = None if record.kubevirt is None else kubevirt.cr(record.kubevirt)
    return Heard(record.kubevirt, record.labels, ClusterWishes(cr, record.labels))


def after(last: Heard, crs: Objects | None, nodes: Objects | None, node: str) -> Heard:
    """What is heard now; None: no answer yet. ``node`` is the name of this one."""
    document, cr, doubt = _cr(last, crs)
    labels, missing = _labels(last, nodes, node)
    doubts = tuple(line for line in (doubt, missing) if line)
    return Heard(document, labels, ClusterWishes(cr, labels), doubts)


def _cr(last: Heard, crs: Objects | None) -> tuple[Mapping[str, Any] | None, KubeVirtCR | None, str]:
    """The document in force, what it says, and a doubt. One that has not changed is not read again."""
    stays = last.kubevirt, last.wishes.kubevirt
    if crs is None:
        return *stays, ""
    chosen = kubevirt.chosen(crs.values())
    if chosen is None:
        gone = "there is no deployed KubeVirt CR any more: what it said last stays in force"
        return *stays, gone if last.kubevirt is not None else ""
    if chosen == last.kubevirt:
        return *stays, ""
    cr = kubevirt.cr(chosen)
    if cr.fault is not None:
        return *stays, f"the KubeVirt CR is not in force: {cr.fault.what}"
    return chosen, cr, ""


def _labels(last: Heard, nodes: Objects | None, node: str) -> tuple[Mapping[str, str] | None, str]:
    if nodes is None:
        return last.labels, ""
    metadata = nodes.get(node, {}).get("metadata")
    if not isinstance(metadata, Mapping):
        return last.labels, f"the cluster has no Node of the name {node}: set node.name"
    labels = metadata.get("labels")
    if not isinstance(labels, Mapping):
        return {}, ""
    return {str(key): text for key, text in labels.items() if isinstance(text, str)}, ""


def line(found: Problem) -> str:
    """What of the wishes is not in force, on one line: where; what; and what to do."""
    of = f"{place(found)}: " if found.about else ""
    return f"{of}{found.what}; {found.hint}" if found.hint else f"{of}{found.what}"


def place(found: Problem) -> str:
    """Where in the CR, or which setting."""
    return f"KubeVirt CR: {found.about}" if found.about.startswith(SECTIONS) else found.about
