# SPDX-License-Identifier: Apache-2.0
"""Problem: something that is wrong, or may be, and what to do about it.

``policy`` finds problems; the log, the commands, the page and the Node condition show them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class ProblemCode(StrEnum):
    """The kind of a problem; stable, and in JSON. An Unhealthy device has its ReasonCode instead."""

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
    POD_RESOURCES = "pod-resources"
    HOST_UNREAD = "host-unread"
    CHANGE = "change"
    NO_KUBELET = "no-kubelet"
    NOT_REGISTERED = "not-registered"
    OTHER_PLUGIN = "other-plugin"
    SHORTFALL = "shortfall"  # about a card with less than it is to have
    NO_CARD = "no-card"  # a desired type for which no card is free
    NOT_MADE = "type-not-made"  # one that the KubeVirt CR permits, and that a card here could have
    MIXED_TYPES = "mixed-types"  # vGPUs of several types under one name
    RESOURCE_NAME = "resource-name"
    NOT_BOUND = "not-bound"
    INOTIFY = "inotify"
    VIRT_HANDLER = "virt-handler"  # virt-handler advertises, creates or deletes devices of nodeagent, too


class Problem(NamedTuple):
    """One problem: ``code`` and ``subject`` identify it, whatever its text is now.

    ``subject`` is a rule, an alias, a driver, a place in a file, "" for the node. ``hint`` is what to do, ""
    for nothing. One that is not ``action_required`` is a note: it may be intended.
    """

    code: str  # a ProblemCode; of another version maybe one that is not known here
    subject: str
    message: str
    hint: str
    action_required: bool

    @property
    def key(self) -> tuple[str, str]:
        """The same for the same problem, from one moment to the next."""
        return self.code, self.subject

    def with_place(self) -> Problem:
        """The same with the place in its message, which identifies it then."""
        message = f"{self.subject}: {self.message}" if self.subject else self.message
        return self._replace(subject=message, message=message)

    @property
    def line(self) -> str:
        """All of it on one line: place, cause, and what to do."""
        at = f"{self.subject}: " if self.subject else ""
        return f"{at}{self.message}; {self.hint}" if self.hint else f"{at}{self.message}"


def wrong(code: ProblemCode, about: str, what: str, hint: str = "") -> Problem:
    """A problem that needs a change."""
    return Problem(code, about, what, hint, True)


def misconfigured(place: str, what: str, hint: str) -> Problem:
    """A mistake in the configuration, the KubeVirt CR or a file of another tool; ``place`` may be ""."""
    return wrong(ProblemCode.CONFIGURATION, place, what, hint)


def virt_handler_conflict(place: str, what: str, hint: str) -> Problem:
    """A device or resource that both nodeagent and virt-handler manage; ``place``: as for a mistake."""
    return wrong(ProblemCode.VIRT_HANDLER, place, what, hint)


def note(code: ProblemCode, what: str, hint: str = "", about: str = "") -> Problem:
    """A problem that may be intended."""
    return Problem(code, about, what, hint, False)


def of_settings(warnings: Iterable[str]) -> tuple[Problem, ...]:
    """Notes on the settings in force."""
    return tuple(note(ProblemCode.SETTINGS, warning, about=warning) for warning in warnings)
