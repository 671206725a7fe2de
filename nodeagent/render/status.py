# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent status`` prints of the document that the daemon gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodeagent.render.table import table

_HEAD = ("RESOURCE", "DEVICES", "HEALTHY", "REGISTERED", "HELD")


def text(document: Mapping[str, Any]) -> str:
    """The resources, who holds what, and what needs a person."""
    kubelet, host = document["kubelet"], document["host"]
    lines = [
        f"nodeagent {document['version']}, pid {document['pid']}, up {document['uptimeSeconds']:.0f} s",
        f"kubelet {'present' if kubelet['present'] else 'away'} at {kubelet['socket']}",
        f"pod-resources: {kubelet['podResources']}",
        f"host: {host['functions']} functions, {host['groups']} groups; events by {host['events']['source']}",
        "",
        table(_HEAD, [_row(each, document["holders"]) for each in document["resources"]])
        if document["resources"]
        else "no resources",
    ]
    lines += [""] if document["holders"] else []
    lines += [f"{device} held by {held['pod']}" for device, held in document["holders"].items()]
    lines += [f"waiting on {each['card']}: {each['action']}: {each['why']}" for each in _waiting(document)]
    lines += ["", "all is well"] if not document["problems"] else ["", "to look at:"]
    return "\n".join([*lines, *(f"  {problem}" for problem in document["problems"])])


def _waiting(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """Changes of the host that wait for somebody to let go."""
    return list(document.get("changes", {}).get("waiting", ()))


def _row(resource: Mapping[str, Any], holders: Mapping[str, Any]) -> tuple[str, ...]:
    ids = {device["id"] for device in resource["devices"]}
    return (
        resource["name"],
        str(len(ids)),
        str(resource["healthy"]),
        "yes" if resource["registered"] else "no",
        str(sum(device in ids and held["resource"] == resource["name"] for device, held in holders.items())),
    )
