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
from nodeagent.model.cluster import ClusterWishes

Objects = Mapping[str, Mapping[str, Any]]


class Heard(NamedTuple):
    """The documents, what they wish, and ``doubts``: whole lines on what stays in force without them."""

    kubevirt: Mapping[str, Any] | None = None
    labels: Mapping[str, str] | None = None
    wishes: ClusterWishes = ClusterWishes()
    doubts: tuple[str, ...] = ()


def before(record: Record) -> Heard:
    """What a daemon before this one has heard."""
    return _with_wishes(Heard(record.kubevirt, record.labels))


def after(last: Heard, crs: Objects | None, nodes: Objects | None, node: str) -> Heard:
    """What is heard now; None: no answer yet. ``node`` is the name of this one."""
    document, doubt = _cr(last, crs)
    labels, missing = _labels(last, nodes, node)
    doubts = tuple(line for line in (doubt, missing) if line)
    if (document, labels) == (last.kubevirt, last.labels):
        return last._replace(doubts=doubts)
    return _with_wishes(Heard(document, labels, doubts=doubts))


def _cr(last: Heard, crs: Objects | None) -> tuple[Mapping[str, Any] | None, str]:
    if crs is None:
        return last.kubevirt, ""
    chosen = kubevirt.chosen(crs.values())
    if chosen is None:
        gone = "there is no deployed KubeVirt CR any more: what it said last stays in force"
        return last.kubevirt, gone if last.kubevirt is not None else ""
    fault = kubevirt.cr(chosen).fault
    if fault is not None:
        return last.kubevirt, f"the KubeVirt CR is not in force: {fault.what}"
    return chosen, ""


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


def _with_wishes(heard: Heard) -> Heard:
    cr = None if heard.kubevirt is None else kubevirt.cr(heard.kubevirt)
    return heard._replace(wishes=ClusterWishes(cr, heard.labels))
