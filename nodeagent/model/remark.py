# SPDX-License-Identifier: Apache-2.0
"""Remark: what a node would keep silent about, as a value: why less works here than somebody may expect.

Its code is stable, and in JSON. One that is ``wrong`` needs a person, as any problem does; the others are
notes, which may be as they were meant. Named tuples, since the daemon's start pays for each class.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class RemarkCode(StrEnum):
    """What a Remark is about."""

    NO_IOMMU = "no-iommu"
    NO_VFIO = "no-vfio"
    IDLE_RULE = "rule-takes-nothing"
    IDLE_SELECTOR = "selector-takes-nothing"
    IDLE_ALIAS = "alias-takes-nothing"
    HOST_DRIVER = "on-a-host-driver"
    SETTINGS = "settings"
    OTHER_CARDS = "for-other-cards"
    CDI_FILE = "cdi-file"


class Remark(NamedTuple):
    """One thing to know: ``code`` and ``about`` tell it from the others, whatever its words are now.

    ``about`` is a rule, an alias, a driver, "" for the node. ``hint`` is what to do, "" for nothing.
    """

    code: str  # a RemarkCode; of another version maybe one that is not known here
    about: str
    what: str
    hint: str
    wrong: bool

    @property
    def key(self) -> tuple[str, str]:
        """The same for the same thing, from one moment to the next."""
        return self.code, self.about


def note(code: RemarkCode, what: str, hint: str = "", about: str = "") -> Remark:
    """One that may be as it was meant."""
    return Remark(code, about, what, hint, False)
