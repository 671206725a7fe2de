# SPDX-License-Identifier: Apache-2.0
"""Request: what somebody asks for by hand (``nodeagent bind``, ``release``), and the Answer to it.

Both go through a socket as plain data (``plain``) where a daemon does the work. Decided by
``policy.change.byhand``, carried out as any other change.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from nodeagent.model.ids import VFIO_PCI


class Asking(StrEnum):
    """What is asked for."""

    BIND = "bind"
    RELEASE = "release"


class Request(NamedTuple):
    """``names``: addresses, patterns of them, or ids ``vendor:device``; ``driver``: to bind to.

    ``at_boot``: functions that a boot has given to VFIO by files of ours: they stay so until the next one.
    """

    asking: Asking
    names: tuple[str, ...]
    driver: str = VFIO_PCI
    dry_run: bool = False
    at_boot: tuple[str, ...] = ()


class Became(StrEnum):
    """What became of a group of functions."""

    DONE = "done"
    PLANNED = "would be done"
    NOTHING = "nothing to do"
    REFUSED = "refused"
    LATE = "not done yet"


class Result(NamedTuple):
    """One IOMMU group: the ``functions`` of it that were named, or follow, and what became of them.

    ``refusals``: why not, and what to do about it.
    """

    functions: tuple[str, ...]
    became: Became
    what: str = ""
    refusals: Mapping[str, str] = MappingProxyType({})


class Answer(NamedTuple):
    """The results; or the ``error`` for which nothing was looked at, with what to do."""

    results: tuple[Result, ...] = ()
    error: str = ""
    hint: str = ""
