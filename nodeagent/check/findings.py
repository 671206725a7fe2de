# SPDX-License-Identifier: Apache-2.0
"""The types that all checks share: the checked node, the verdicts, and the lines of the report."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Spec
from nodeagent.model.status import Status

AS_ROOT = "run it again as root"


class Verdict(StrEnum):
    """The result of a check. ``note``: the state may be intended; ``unseen``: the state could not be read."""

    OK = "ok"
    WRONG = "wrong"
    NOTE = "note"
    UNSEEN = "unseen"


class ReadinessLine(NamedTuple):
    """One line of the report: the evidence and where it was read; ``hint``: the fix, or ""."""

    section: str
    check: str
    verdict: Verdict
    message: str
    hint: str = ""


Finding = tuple[Verdict, str, str]
"""The verdict, the evidence and where it was read, and the fix, or ""."""


class Node(NamedTuple):
    """The node to check. Paths are host paths, according to the settings in force.

    ``snapshot``: the Snapshot of the daemon; without a daemon, a Snapshot with the settings of this command.
    ``saved``: the host comes from a file; then ``root`` is an empty tree. ``daemon``: the Status of the
    daemon, or why there is none.
    """

    root: Root
    snapshot: Snapshot
    plugin_dir: str
    pod_resources: str
    status_socket: str
    timeouts: Timeouts
    saved: bool = False
    daemon: Status | Exception = ConnectionRefusedError()

    @property
    def host(self) -> Host:
        """The Host of the node."""
        return self.snapshot.host

    @property
    def spec(self) -> Spec:
        """The settings in force, with the KubeVirt CR."""
        return self.snapshot.spec


def ok(seen: str) -> Finding:
    """The verdict that the checked part is in order."""
    return Verdict.OK, seen, ""


def wrong(seen: str, to_do: str) -> Finding:
    """The verdict that the checked part prevents the assignment of devices."""
    return Verdict.WRONG, seen, to_do


def note(seen: str, to_do: str = "") -> Finding:
    """The verdict that the state of the checked part may be intended."""
    return Verdict.NOTE, seen, to_do


def unseen(why: str, to_do: str = "") -> Finding:
    """The verdict that this process cannot read the checked part."""
    return Verdict.UNSEEN, why, to_do
