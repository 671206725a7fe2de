# SPDX-License-Identifier: Apache-2.0
"""Health for probes, each a line of text: is the process alive, and can its node be counted on.

``alive`` fails only where a new process would help: what the node lacks is no reason to start anew. ``ready``
is about the work: the host is scanned and the kubelet, if there is one, knows and reads all lists.
"""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.model.status import Status


class Health(NamedTuple):
    """The verdict, and the lines that say why."""

    good: bool
    text: str


def alive(what_stands_still: str | None) -> Health:
    """``what_stands_still``: None if nothing does."""
    return Health(what_stands_still is None, what_stands_still or "alive")


def ready(status: Status) -> Health:
    """Whether the node can be counted on."""
    return Health(not status.unready, "\n".join(status.unready) or "ready")
