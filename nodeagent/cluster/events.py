# SPDX-License-Identifier: Apache-2.0
"""Events of core/v1, as ``kubectl describe`` shows them: made once, and counted when the same comes again.

The name of an Event follows from what it says and of what. So a daemon that has started anew finds its own
ones, with no right to read any, and makes no second of the same. A text may hold what others wrote: it is
made one line of signs that can be printed, and cut.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import NamedTuple

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import refusals
from nodeagent.cluster.session import MERGE_PATCH, Object, Session

COMPONENT = "nodeagent"
MOST = 1024  # bytes of a message: what client-go and kubelets keep to
_LONGEST = 253  # characters of a name: RFC 1123, as Kubernetes reads it
_NODES = "default"  # the namespace of Events on what has none: pkg/apis/core/validation/events.go


class Involved(NamedTuple):
    """What an Event is about: a Node, or with a namespace a pod. ``uid`` "": not known."""

    name: str
    uid: str = ""
    namespace: str = ""

    @property
    def reference(self) -> Object:
        """As objects refer to each other."""
        kind = "Pod" if self.namespace else "Node"
        given = {"namespace": self.namespace, "uid": self.uid}
        known = {key: value for key, value in given.items() if value}
        return {"apiVersion": "v1", "kind": kind, "name": self.name, **known}


class Event(NamedTuple):
    """What happened: a reason in CamelCase, and one line."""

    involved: Involved
    reason: str
    message: str
    warning: bool

    @property
    def path(self) -> str:
        """Of the collection that it belongs into."""
        return f"/api/v1/namespaces/{self.involved.namespace or _NODES}/events"

    @property
    def name(self) -> str:
        """The same for what says the same of the same."""
        said = "\0".join((*self.involved, self.reason, self.message))
        sum_ = hashlib.sha256(said.encode()).hexdigest()[:16]
        return f"{self.involved.name[: _LONGEST - 1 - len(sum_)]}.{sum_}"


class Seen(NamedTuple):
    """How often it happened, and when first and last (seconds since 1970)."""

    often: int
    first: float
    last: float


async def write(session: Session, host: str, event: Event, seen: Seen, known: int = 0) -> int:
    """Tell that it happened so often more; how often in all. ``known``: as it was told before, or 0.

    :raises ClusterUnavailable: if it was not told, as far as is known.
    """
    if known:
        try:
            return await _count(session, event, known + seen.often, seen.last)
        except ClusterUnavailable as error:
            if error.status != refusals.NOT_FOUND:
                raise  # else it has expired, as Events do after an hour
    try:
        await session.create(event.path, document(host, event, seen))
    except ClusterUnavailable as error:
        if error.status != refusals.CONFLICT:
            raise
        return await _found(session, event, seen)
    return seen.often


async def _found(session: Session, event: Event, seen: Seen) -> int:
    """A daemon before this one has told the same: its number is in the answer to any change."""
    answer = await session.patch(_path(event), {"lastTimestamp": stamp(seen.last)}, MERGE_PATCH)
    before = answer.get("count")
    counted = before if isinstance(before, int) else 1
    return await _count(session, event, counted + seen.often, seen.last)


async def _count(session: Session, event: Event, count: int, last: float) -> int:
    await session.patch(_path(event), {"count": count, "lastTimestamp": stamp(last)}, MERGE_PATCH)
    return count


def _path(event: Event) -> str:
    return f"{event.path}/{event.name}"


def document(host: str, event: Event, seen: Seen) -> Object:
    """The object; ``host`` is the name of the node that tells."""
    return {
        "metadata": {"name": event.name, "namespace": event.involved.namespace or _NODES},
        "involvedObject": event.involved.reference,
        "reason": event.reason,
        "message": event.message,
        "type": "Warning" if event.warning else "Normal",
        "count": seen.often,
        "firstTimestamp": stamp(seen.first),
        "lastTimestamp": stamp(seen.last),
        "source": {"component": COMPONENT, "host": host},
        "reportingComponent": COMPONENT,
        "reportingInstance": host,
    }


def stamp(seconds: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def line(text: str, most: int = MOST) -> str:
    """The text on one line, of signs that can be printed, in at most so many bytes."""
    plain = "".join(each for each in " ".join(text.split()) if each.isprintable())
    data = plain.encode(errors="replace")
    return plain if len(data) <= most else f"{data[: most - 3].decode(errors='ignore')}…"
