# SPDX-License-Identifier: Apache-2.0
"""Problem: a fault or a possible fault, and its fix.

``policy`` finds problems; the log, the commands, the page and the Node condition show them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class ProblemCode(StrEnum):
    """The kind of a problem; stable, and part of JSON documents.

    An Unhealthy device has a ReasonCode instead.
    """

    NO_IOMMU = "no-iommu"
    NO_VFIO = "no-vfio"
    IDLE_RULE = "rule-takes-nothing"
    IDLE_SELECTOR = "selector-takes-nothing"
    IDLE_ALIAS = "alias-takes-nothing"
    HOST_DRIVER = "on-a-host-driver"
    SETTINGS = "settings"
    OTHER_CARDS = "for-other-cards"
    CDI_FILE = "cdi-file"
    SUBSYSTEM = "subsystem"
    CONFIGURATION = "configuration"
    HTTP = "http"
    CLUSTER = "cluster"
    DRA = "dra"
    DRA_NOT_REGISTERED = "dra-not-registered"
    POD_RESOURCES = "pod-resources"
    HOST_UNREAD = "host-unread"
    CHANGE = "change"
    NO_KUBELET = "no-kubelet"
    NOT_REGISTERED = "not-registered"
    OTHER_PLUGIN = "other-plugin"
    SHORTFALL = "shortfall"  # a card has fewer instances than configured
    NO_CARD = "no-card"  # a desired type for which no card is free
    NOT_MADE = "type-not-made"  # one that the KubeVirt CR permits, and that a card here could have
    MIXED_TYPES = "mixed-types"  # vGPUs of several types under one name
    RESOURCE_NAME = "resource-name"
    NOT_BOUND = "not-bound"
    INOTIFY = "inotify"
    VIRT_HANDLER = "virt-handler"  # virt-handler advertises, creates or deletes devices of nodeagent, too


class Problem(NamedTuple):
    """One problem; ``code`` and ``subject`` identify it, although its message may change.

    ``subject`` names a rule, an alias, a driver or a place in a file; "" means the node. ``hint`` is the fix,
    or "". A problem that is not ``action_required`` is a note: it may be intended.
    """

    code: str  # a ProblemCode; from another version possibly an unknown one
    subject: str
    message: str
    hint: str
    action_required: bool

    @property
    def key(self) -> tuple[str, str]:
        """Return the identity of the problem, which stays the same when its message changes."""
        return self.code, self.subject

    def with_place(self) -> Problem:
        """Return the problem with its subject in the message, which is also the new subject."""
        message = f"{self.subject}: {self.message}" if self.subject else self.message
        return self._replace(subject=message, message=message)

    @property
    def line(self) -> str:
        """Return the problem on one line: place, cause, and fix."""
        at = f"{self.subject}: " if self.subject else ""
        return f"{at}{self.message}; {self.hint}" if self.hint else f"{at}{self.message}"


def wrong(code: ProblemCode, about: str, what: str, hint: str = "") -> Problem:
    """Return a problem that needs action."""
    return Problem(code, about, what, hint, True)


def misconfigured(place: str, what: str, hint: str) -> Problem:
    """Return a problem of the configuration, the KubeVirt CR or a file of another tool; ``place`` may be
    "".
    """
    return wrong(ProblemCode.CONFIGURATION, place, what, hint)


def virt_handler_conflict(place: str, what: str, hint: str) -> Problem:
    """Return the problem that both nodeagent and virt-handler manage a device or resource."""
    return wrong(ProblemCode.VIRT_HANDLER, place, what, hint)


def note(code: ProblemCode, what: str, hint: str = "", about: str = "") -> Problem:
    """Return a problem (note) that may be intended."""
    return Problem(code, about, what, hint, False)


def of_settings(warnings: Iterable[str]) -> tuple[Problem, ...]:
    """Return notes about the settings in force."""
    return tuple(note(ProblemCode.SETTINGS, warning, about=warning) for warning in warnings)
