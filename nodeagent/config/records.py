# SPDX-License-Identifier: Apache-2.0
"""The settings in force: what is kept after reading. Frozen; nothing of the YAML is left in it.

One record for each section of the table that the daemon needs for itself, with one field for each setting.
What is wanted of the node is ``Configuration``, in ``model``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nodeagent.model.configuration import Configuration


class Kubelet(NamedTuple):
    """Where the kubelet is; paths without the root prefix."""

    registration: str
    device_plugin_dir: str
    plugins_registry_dir: str
    pod_resources: str


class Timing(NamedTuple):
    """Times in seconds."""

    settle: float
    resync: float
    holders: float


class Log(NamedTuple):
    """``format``: auto, journald, json, text. ``level``: debug, info, warning, error."""

    format: str
    level: str


class Status(NamedTuple):
    """The socket of ``nodeagent status``; its path without the root prefix."""

    socket: str


class Http(NamedTuple):
    """Where HTTP is served ("" for nowhere: host and port), and to whom the page: false, true, everywhere."""

    listen: str
    page: str


class Cluster(NamedTuple):
    """What is written to the cluster, where it is followed. ``stale_resources``: report, remove, off."""

    events: bool = True
    condition: bool = False
    stale_resources: str = "report"


class Cdi(NamedTuple):
    """The directory of CDI specifications, without the root prefix."""

    spec_dir: str


class Value(NamedTuple):
    """One effective value for people: plain data as one would write it, and where it comes from."""

    key: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. ``warnings`` are whole lines for people: odd, but no error.

    ``watched`` are the directories, with the root prefix, in which a change means "load again". ``filed`` are
    the values that files gave, without what flags and variables put over them.
    """

    configuration: Configuration
    kubelet: Kubelet
    timing: Timing
    log: Log
    status: Status
    http: Http
    cdi: Cdi
    cluster: Cluster
    values: tuple[Value, ...] = ()
    warnings: tuple[str, ...] = ()
    watched: tuple[str, ...] = field(default=(), compare=False)
    filed: tuple[Value, ...] = field(default=(), compare=False)
