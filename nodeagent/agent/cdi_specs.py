# SPDX-License-Identifier: Apache-2.0
"""What CDI files on the host say: read when a directory changes, and now and then; only where rules ask.

Each directory is read by a thread of its own, so one that hangs concerns its own devices alone: they are
listed as Unhealthy until it answers. A directory hangs if a call into the kernel does not return; a file may
take any time to parse, and a thousand files take a while. The result of a late reading is used. A directory
is watched once it was read: to watch one that hangs would hang. What was read goes to the scanner, which
looks for the nodes that the files name, so that a Host has both, or neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

import anyio

from nodeagent.agent.core import Core
from nodeagent.base import threads
from nodeagent.base.latest import Latest
from nodeagent.base.watch import Change
from nodeagent.config import cdi_files as reading
from nodeagent.kernel.root import Root
from nodeagent.model.nodes import CdiFile, cdi_nodes
from nodeagent.model.spec import Spec

_LOOK = "/dev/cdi"  # as the key of a scan request: nodes are looked for, and nothing else


class Reader:
    """Reads both directories as often as it is asked to; a directory that hangs is read by nobody else."""

    def __init__(self, root: Root, known: Mapping[str, CdiFile], limit: float) -> None:
        """``known``: what was read before; a file that is wrong by now keeps the devices that it had.

        ``limit``: seconds in the kernel for one file, after which a directory hangs.
        """
        self._limit = limit
        self._root = root
        self._known = dict(known)
        self._hanging: dict[int, tuple[reading.Directory, asyncio.Future[dict[str, CdiFile]]]] = {}
        self.answers = Latest(0)  # rung when a directory that hung has answered
        self.answered: frozenset[str] = frozenset()  # the directories that were read the last time

    async def read(self, kinds: frozenset[str]) -> Mapping[str, CdiFile]:
        """All files of these kinds, and those that cannot be used."""
        found: dict[str, CdiFile] = {}
        answered: set[str] = set()
        for rank, directory in enumerate(reading.DIRECTORIES):
            files = await self._read(rank)
            if files is not None:
                answered.add(directory)
            found |= self._silent(rank) if files is None else files
        self._known, self.answered = found, frozenset(answered)
        return {path: file for path, file in found.items() if file.kind in kinds or file.fault}

    async def _read(self, rank: int) -> dict[str, CdiFile] | None:
        """What is in a directory; None if it does not answer."""
        if rank in self._hanging:
            _, late = self._hanging[rank]
            if not late.done():
                return None
            del self._hanging[rank]
            self._known |= late.result()  # files that have not changed since are not parsed again
        directory = reading.Directory(self._root.prefix, rank, dict(self._known))
        call = threads.start(directory.read)
        while True:
            progress = directory.progress
            with anyio.move_on_after(self._limit):
                return await threads.result(call)
            if directory.progress == progress and not directory.parsing:
                self._hanging[rank] = directory, call
                call.add_done_callback(lambda _: self.answers.touch())
                return None

    def _silent(self, rank: int) -> dict[str, CdiFile]:
        """The files that are known of a directory that hangs, and the path at which it does."""
        at = self._hanging[rank][0].at
        known = reading.files_in(self._known, reading.DIRECTORIES[rank])
        files = {file.path: file._replace(fault=f"{at} does not answer", stamp=()) for file in known}
        hanging = files.get(at, CdiFile(at, rank=rank))
        return files | {at: hanging._replace(fault="it does not answer")}


class CdiSpecs:
    """The component: keeps what the scanner knows of CDI files."""

    name = "CDI specifications"

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reader = Reader(core.root, core.scan_requests.specs, core.timeouts.cdi_directory_read)
        self._looked_for: tuple[str, ...] = ()
        self._changed: Latest[None] = Latest(None)

    async def run(self) -> None:
        """Read whenever something has changed, for ever."""
        while True:
            seen, answers = self._changed.version, self._reader.answers.version
            spec = self._core.snapshots.now.spec
            await self._bring_up(spec)
            await self._until_news(seen, answers, spec)

    async def _bring_up(self, spec: Spec) -> None:
        wanted = spec.cdi_kinds
        found = await self._reader.read(wanted) if wanted else {}
        self._watch(self._reader.answered if wanted else frozenset())
        nodes, known = cdi_nodes(found), found == self._core.scan_requests.specs
        if known and nodes == self._looked_for:
            return
        self._core.events.watch_cdi_nodes(nodes)
        self._looked_for = nodes
        if not known:
            self._core.scan_requests.specs = found
        self._core.scan_requests.add(
            _LOOK
        )  # also where only the watches are new: a node may have gone before

    async def _until_news(self, seen: int, answers: int, spec: Spec) -> None:
        """Until something was written, hangs no more, or is wanted; or for as long as events may be lost."""
        with anyio.move_on_after(self._core.settings.get().timing.resync):
            async with anyio.create_task_group() as group:

                async def until(news: Awaitable[object]) -> None:
                    await news
                    group.cancel_scope.cancel()

                group.start_soon(until, self._changed.newer(seen))
                group.start_soon(until, self._reader.answers.newer(answers))
                group.start_soon(until, self._other_wishes(spec))

    async def _other_wishes(self, spec: Spec) -> None:
        version = -1
        while self._core.snapshots.now.spec.cdi_kinds == spec.cdi_kinds:
            version, _ = await self._core.snapshots.newer(version)

    def _watch(self, directories: frozenset[str]) -> None:
        """Watch the directories that have answered; changes between the read and this are read once more."""
        paths = map(self._core.root.path, directories)
        if self._core.watcher.watch_only(paths, self._on_change, contents=True):
            self._changed.touch()

    def _on_change(self, _: Change) -> None:
        self._changed.touch()


def components(core: Core) -> list[CdiSpecs]:
    """The component that reads CDI specs, for nodes with such rules."""
    return [CdiSpecs(core)]


async def first(root: Root, spec: Spec, limit: float) -> Mapping[str, CdiFile]:
    """What there is now: before the first scan, so that nothing is listed that is missing for a moment."""
    return await Reader(root, {}, limit).read(spec.cdi_kinds)
