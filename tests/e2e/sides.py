# SPDX-License-Identifier: Apache-2.0
"""A program: the cluster sides of many nodes in one process, each with settings and a record of its own.

Each is wired as in the daemon, with the merge behind it; there is no host below, and nobody
offers anything. A node is a directory below the given one, with ``etc/kubeconfig`` in it. A socket tells how
far they are: since when each hears the cluster, and when they had which edit in force. An edit is a resource
whose name begins with ``EDIT``.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import anyio

from nodeagent import config
from nodeagent.agent import core
from nodeagent.agent.cluster import follow
from nodeagent.agent.config_loop import SpecMerger
from nodeagent.agent.core import Core
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Supervisor
from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster import kube_client
from nodeagent.config import Sources
from nodeagent.http.server import Request, Response, serve_unix
from nodeagent.kernel.root import Root
from nodeagent.model.kubevirt import ClusterConfig
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Spec
from nodeagent.model.status import Status

SOCKET = "sides.sock"
EDIT = "example.com/edit-"


class Spread(NamedTuple):
    """How many ``nodes`` had an edit in force, and when the first, the middle one and the last of them did.

    Moments are those of the monotonic clock, which is one for all processes.
    """

    nodes: int
    first: float
    half: float
    last: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """Of moments in their order."""
        return cls(len(times), times[0], times[len(times) // 2], times[-1])


class Told(NamedTuple):
    """``heard``: since when each node is answered that is, in seconds since 1970; ``edits`` by resource.

    Once all nodes are answered ``heard`` stays as it is.
    """

    heard: list[float]
    edits: dict[str, Spread]


class Sides:
    """All of them."""

    def __init__(self, directory: Path) -> None:
        first = core.build(Root(str(directory)), Latest(_settings(directory, "none")), Timeouts())
        # one inotify instance for all: a user may have few of them, and nothing here watches files
        self._cores = [_core(first, place) for place in sorted(directory.glob("*/"))]
        self._followers = [follow.follower(each, _no_status) for each in self._cores]
        self._heard: list[float] = []
        self._edits: dict[str, list[float]] = defaultdict(list)

    async def run(self, path: str) -> None:
        """Follow the cluster, and tell of it at that path, until killed."""
        async with anyio.create_task_group() as group:
            for each, follower in zip(self._cores, self._followers, strict=True):
                for component in (follower, SpecMerger(each.settings, each.cluster, each.snapshots)):
                    group.start_soon(each.supervisor.run, component, name=component.name)
                group.start_soon(self._note, each.snapshots)
            await serve_unix(path, self._answer, Timeouts())

    async def _note(self, snapshots: Snapshots) -> None:
        seen, last = -1, ""
        while True:
            seen, snapshot = await snapshots.newer(seen)
            edit = _edit(snapshot.spec)
            if edit != last:
                last = edit
                self._edits[edit].append(time.monotonic())

    async def _answer(self, _: Request) -> Response:
        return Response(200, (), json.dumps(self._told()._asdict()).encode())

    def _told(self) -> Told:
        if len(self._heard) < len(self._cores):  # to ask them all again would take a third of a core
            statuses = [follower.status for follower in self._followers]
            self._heard = [status.since for status in statuses if status.reachable]
        return Told(self._heard, {edit: Spread.of(times) for edit, times in self._edits.items()})


def _settings(root: Path, node: str) -> config.Settings:
    flags = {
        "kubevirt.enabled": "true",
        "kubeconfig": "/etc/kubeconfig",
        "node.name": node,
        "cluster.events": "false",  # they tell what happens to devices, and there are none
    }
    return config.load(Sources(str(root), flags, {}))


def _core(first: Core, place: Path) -> Core:
    """The Core of one node; what the cluster side does not touch is shared."""
    return replace(
        first,
        root=Root(str(place)),
        settings=Latest(_settings(place, place.name)),
        cluster=Latest(ClusterConfig()),
        supervisor=Supervisor(Timeouts()),
        snapshots=Snapshots(Snapshot()),
    )


def _no_status() -> Status:
    raise AssertionError("the settings ask for neither Events nor the condition of the Node")


def _edit(spec: Spec) -> str:
    return next((rule.name for rule in spec.rules if rule.name.startswith(EDIT)), "")


def main(directory: str) -> None:
    """Run all nodes that have a directory below this one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kube_client.kubernetes()  # once, here: sessions in several threads must not load it at once

    async def run() -> None:
        await Sides(Path(directory)).run(f"{directory}/{SOCKET}")

    anyio.run(run)


if __name__ == "__main__":
    main(sys.argv[1])
