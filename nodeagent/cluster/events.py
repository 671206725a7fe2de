# SPDX-License-Identifier: Apache-2.0
"""Writes Kubernetes Events (core/v1): an Event is created once; when it recurs, its count is increased.

The name of an Event is a checksum of its contents. Therefore a restarted daemon increments the existing
Event, without permission to read Events. Texts may contain untrusted parts: ``on_one_line`` removes
unprintable characters and limits the length.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import NamedTuple

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster.api import CONFLICT, MERGE_PATCH, NOT_FOUND, Object, Session

COMPONENT = "nodeagent"
MAX_MESSAGE = 1024  # bytes: the limit of client-go and the kubelet
_MAX_NAME = 253  # characters of a name: RFC 1123, as Kubernetes reads it
_NODES = "default"  # the namespace of Events about objects without one: pkg/apis/core/validation/events.go


class Involved(NamedTuple):
    """The object of an Event: a Node, or, if the namespace is set, a pod. ``uid`` "" means unknown."""

    name: str
    uid: str = ""
    namespace: str = ""

    @property
    def reference(self) -> Object:
        """Return the ObjectReference."""
        kind = "Pod" if self.namespace else "Node"
        given = {"namespace": self.namespace, "uid": self.uid}
        known = {key: value for key, value in given.items() if value}
        return {"apiVersion": "v1", "kind": kind, "name": self.name, **known}


class Event(NamedTuple):
    """An Event with a reason in CamelCase and a message of one line."""

    involved: Involved
    reason: str
    message: str
    warning: bool

    @property
    def path(self) -> str:
        """Return the path of the Event's collection."""
        return f"/api/v1/namespaces/{self.involved.namespace or _NODES}/events"

    @property
    def name(self) -> str:
        """Return the name, which is the same for equal Events."""
        said = "\0".join((*self.involved, self.reason, self.message))
        sum_ = hashlib.sha256(said.encode()).hexdigest()[:16]
        return f"{self.involved.name[: _MAX_NAME - 1 - len(sum_)]}.{sum_}"


class Occurrences(NamedTuple):
    """The number of occurrences, and the times of the first and last (seconds since 1970)."""

    number: int
    first: float
    last: float


async def write(session: Session, host: str, event: Event, occurrences: Occurrences, known: int = 0) -> int:
    """Add these occurrences to the Event, and return the total count. ``known`` is the count so far; if it is
    0, the Event is created.

    :raises ClusterUnavailable: if the server has not confirmed the write.
    """
    if known:
        try:
            return await _count(session, event, known + occurrences.number, occurrences.last)
        except ClusterUnavailable as error:
            if error.status != NOT_FOUND:
                raise  # else the Event has expired: it exists for an hour
    try:
        await session.create(event.path, document(host, event, occurrences))
    except ClusterUnavailable as error:
        if error.status != CONFLICT:
            raise
        return await _count_on(session, event, occurrences)
    return occurrences.number


async def _count_on(session: Session, event: Event, occurrences: Occurrences) -> int:
    """Add to the count of a previous daemon, which the API server returns in the response to a patch."""
    answer = await session.patch(_path(event), {"lastTimestamp": timestamp(occurrences.last)}, MERGE_PATCH)
    count = answer.get("count")
    before = count if isinstance(count, int) else 1
    return await _count(session, event, before + occurrences.number, occurrences.last)


async def _count(session: Session, event: Event, count: int, last: float) -> int:
    await session.patch(_path(event), {"count": count, "lastTimestamp": timestamp(last)}, MERGE_PATCH)
    return count


def _path(event: Event) -> str:
    return f"{event.path}/{event.name}"


def document(host: str, event: Event, occurrences: Occurrences) -> Object:
    """Return the Event object; ``host`` is the name of the reporting node."""
    return {
        "metadata": {"name": event.name, "namespace": event.involved.namespace or _NODES},
        "involvedObject": event.involved.reference,
        "reason": event.reason,
        "message": event.message,
        "type": "Warning" if event.warning else "Normal",
        "count": occurrences.number,
        "firstTimestamp": timestamp(occurrences.first),
        "lastTimestamp": timestamp(occurrences.last),
        "source": {"component": COMPONENT, "host": host},
        "reportingComponent": COMPONENT,
        "reportingInstance": host,
    }


def timestamp(seconds: float) -> str:
    """Return a time in the format of Kubernetes."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def on_one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return the text on one line of printable characters, in at most ``limit`` bytes."""
    plain = "".join(each for each in " ".join(text.split()) if each.isprintable())
    data = plain.encode(errors="replace")
    return plain if len(data) <= limit else f"{data[: limit - 3].decode(errors='ignore')}…"
