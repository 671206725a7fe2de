# SPDX-License-Identifier: Apache-2.0
"""Reads the host's CDI specification files: at each change of a CDI directory, and periodically.

This component runs only if a rule names CDI devices. Each directory is read by a separate thread, so a
directory that hangs (a call into the kernel does not return) affects only the devices that its files name:
these are Unhealthy until the directory answers. The time limit applies only to calls into the kernel, so slow
parsing does not count as a hang. If a read returns after the time limit, its result is still used. A
directory is watched only after it was read, because adding a watch to a hanging directory would hang. The
scanner gets the CDI files and looks up the device nodes that they name, so a Host contains both the CDI files
and their device nodes, or neither.
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

_LOOK = "/dev/cdi"  # the key of a scan request that only looks for device nodes


class Reader:
    """Reads both CDI directories on request. No directory is read while an earlier read of it hangs."""

    def __init__(self, root: Root, known: Mapping[str, CdiFile], limit: float) -> None:
        """``known``: the files that were read before; a file that has become invalid keeps its last valid
        devices.

        ``limit``: if a call into the kernel takes longer for one file (in seconds), the directory counts as
        hanging.
        """
        self._limit = limit
        self._root = root
        self._known = dict(known)
        self._hanging: dict[int, tuple[reading.Directory, asyncio.Future[dict[str, CdiFile]]]] = {}
        self.answers = Latest(0)  # changes when a directory that hung has answered
        self.answered: frozenset[str] = frozenset()  # the directories that answered the last read

    async def read(self, kinds: frozenset[str]) -> Mapping[str, CdiFile]:
        """Return all CDI files of these CDI kinds, and the files that cannot be used."""
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
        """Return the CDI files of one directory; None if a read of the directory hangs."""
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
        """The last known files of a directory that does not answer; their faults name the path that hangs."""
        at = self._hanging[rank][0].at
        known = reading.files_in(self._known, reading.DIRECTORIES[rank])
        files = {file.path: file._replace(fault=f"{at} does not answer", stamp=()) for file in known}
        hanging = files.get(at, CdiFile(at, rank=rank))
        return files | {at: hanging._replace(fault="it does not answer")}


class CdiSpecs:
    """The component that keeps the scanner's CDI files current."""

    name = "CDI specifications"

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reader = Reader(core.root, core.scan_requests.specs, core.timeouts.cdi_directory_read)
        self._looked_for: tuple[str, ...] = ()
        self._changed: Latest[None] = Latest(None)

    async def run(self) -> None:
        """Read the CDI directories whenever a CDI file or a rule has changed, for ever."""
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
        )  # also if only the watches are new: a node may have vanished before they were added

    async def _until_news(self, seen: int, answers: int, spec: Spec) -> None:
        """Wait a limited time for a changed CDI file or rule, or for the end of a hanging read."""
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
        """Watch the directories that have answered; after adding a watch, read the directories once more."""
        paths = map(self._core.root.path, directories)
        if self._core.watcher.watch_only(paths, self._on_change, contents=True):
            self._changed.touch()

    def _on_change(self, _: Change) -> None:
        self._changed.touch()


def components(core: Core) -> list[CdiSpecs]:
    """The component that reads CDI files, for nodes with rules for CDI devices."""
    return [CdiSpecs(core)]


async def first(root: Root, spec: Spec, limit: float) -> Mapping[str, CdiFile]:
    """Read the CDI files before the first scan, so that no existing device is missing from the first list."""
    return await Reader(root, {}, limit).read(spec.cdi_kinds)
