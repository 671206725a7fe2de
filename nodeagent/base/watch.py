# SPDX-License-Identifier: Apache-2.0
"""Watches directories with one inotify instance; components subscribe to changes of a path.

A subscription stays valid when its directory is replaced. The directory and all its parents are watched, so
that a change of any part of the path leads to the current directory: rmdir(2) raises no event in a
directory that another process has open, but it raises one in the parent. A periodic check detects changes
without an event (a file system mounted over a part of the path), and retries a watch or inotify instance
that the kernel refused. Subscribers that may have missed events receive a change with ``lost``.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import anyio
import anyio.lowlevel
from asyncinotify import Event, Inotify, Mask, Watch

from nodeagent.base import hints
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest

_BURST = 256  # events in one read
_SELF = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.IGNORED
_CONTENTS = Mask.CLOSE_WRITE | Mask.ATTRIB
_NAMES = (
    Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.MOVED_FROM
    | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR | Mask.MASK_ADD
)  # fmt: skip
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP)


class Change(NamedTuple):
    """A change of the entry ``name`` in ``directory``; with ``lost``, all entries may have changed."""

    directory: str
    name: str | None = None
    lost: bool = False


OnChange = Callable[[Change], None]
# a watch, and the next path component below it; "" for the directory of a subscription
_Part = tuple[int, str]


class _Subscription:
    """The subscribers of one path, and the watches on the components of the path."""

    __slots__ = ("parts", "refused", "subscribers")

    def __init__(self) -> None:
        self.subscribers: dict[OnChange, bool] = {}  # → True for changes of contents as well
        self.parts: frozenset[_Part] = frozenset()
        self.refused = False  # the kernel allows no more watches

    @property
    def contents(self) -> bool:
        """Return True if a subscriber needs changes of file contents."""
        return any(self.subscribers.values())

    @property
    def directory(self) -> int | None:
        """Return the watch on the directory itself; None if it does not exist or is not watched."""
        return next((number for number, name in self.parts if not name), None)


class DirectoryWatcher:
    """The subscriptions on one inotify instance. All methods must be called on the event loop."""

    def __init__(self, top: str = "/") -> None:
        """Create the watcher. ``top`` is the root of the host's paths; its parents are not watched."""
        self._top = top.rstrip("/")
        self._instance: Latest[Inotify | None] = Latest(_new_instance())
        self._watches: dict[int, Watch] = {}
        self._paths: dict[_Part, set[str]] = {}
        self._subscriptions: dict[str, _Subscription] = {}
        self._ran = False
        self.overflows = 0

    @property
    def has_instance(self) -> bool:
        """Return False while the kernel refuses an inotify instance (fs.inotify.max_user_instances)."""
        return self._instance.get() is not None

    @property
    def unwatched(self) -> tuple[str, ...]:
        """Return the directories that the kernel currently refuses to watch; the periodic check covers
        them.
        """
        return tuple(path for path, each in self._subscriptions.items() if each.refused)

    @property
    def watches(self) -> int:
        """Return the number of kernel watches in use."""
        return len(self._watches)

    def close(self) -> None:
        """Close the inotify instance."""
        if (inotify := self._instance.get()) is not None:
            inotify.close()

    def watch(self, directory: str, on_change: OnChange, *, contents: bool = False) -> None:
        """Call ``on_change`` for each name that is created, deleted or replaced in ``directory``.

        With ``contents``, ``on_change`` is also called after a write to a file or a change of its attributes.
        Callers list the directory after this call, so that they miss no change.
        """
        subscription = self._subscriptions.setdefault(directory, _Subscription())
        subscription.subscribers[on_change] = contents
        self._place(directory, subscription, {})

    def unwatch(self, directory: str, on_change: OnChange) -> None:
        """End a subscription; an unknown one is ignored."""
        subscription = self._subscriptions.get(directory)
        if subscription is None:
            return
        subscription.subscribers.pop(on_change, None)
        if not subscription.subscribers:
            del self._subscriptions[directory]
            self._replace_parts(directory, subscription, frozenset())

    def watch_only(
        self, directories: Iterable[str], on_change: OnChange, *, contents: bool = False
    ) -> frozenset[str]:
        """Watch exactly these directories for ``on_change``; return those that were not watched before."""
        wanted = frozenset(directories)
        before = {path for path, each in self._subscriptions.items() if on_change in each.subscribers}
        for directory in sorted(wanted - before):
            self.watch(directory, on_change, contents=contents)
        for directory in before - wanted:
            self.unwatch(directory, on_change)
        return wanted - before

    async def run(self) -> None:
        """Read events and notify the subscribers, for ever. This task is not cancelled before the process
        ends.

        Cancelling ``Inotify.get`` of asyncinotify 4.4 would lose the events that it has read.
        """
        while (inotify := self._instance.get()) is None:
            await self._instance.newer(self._instance.version)
        if self._ran:
            self._update(self._subscriptions, lost=True)
        self._ran = True
        while True:
            for _ in range(_BURST):
                self._dispatch(await inotify.get())
            await anyio.lowlevel.checkpoint()

    async def check(self, pause: float) -> None:
        """Resolve the watched paths again every ``pause`` seconds, for ever.

        Subscribers of a directory that the kernel refuses to watch get a ``lost`` change each time.
        """
        while True:
            await anyio.sleep(pause)
            if not self.has_instance:
                self._instance.set(_new_instance())
            refused = self.unwatched
            self._update(self._subscriptions)
            self._notify_lost(refused)

    def _dispatch(self, event: Event) -> None:
        if Mask.Q_OVERFLOW in event.mask:
            self.overflows += 1
            self._update(self._subscriptions, lost=True)
            return
        watch = event.watch
        if watch is None or watch.wd not in self._watches:
            return
        number = watch.wd
        if Mask.IGNORED in event.mask:
            del self._watches[number]
        if event.mask & _SELF:
            parts = [part for part in self._paths if part[0] == number]
            self._update({path for part in parts for path in self._paths[part]})
        elif event.name is not None:
            name, contents = str(event.name), bool(event.mask & _CONTENTS)
            for path in tuple(self._paths.get((number, ""), ())):
                self._notify(Change(path, name), contents=contents)
            if not contents:
                self._update(self._paths.get((number, name), ()))

    def _update(self, paths: Iterable[str], *, lost: bool = False) -> None:
        """Watch the current directories of the paths; notify subscribers if a directory was replaced, or if
        ``lost``.
        """
        known: dict[str, int | None] = {}
        changed = []
        for path in tuple(paths):
            subscription = self._subscriptions[path]
            before = subscription.directory
            self._place(path, subscription, known)
            if lost or subscription.directory != before:
                changed.append(path)
        self._notify_lost(changed)

    def _notify_lost(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._notify(Change(path, lost=True))

    def _notify(self, change: Change, *, contents: bool = False) -> None:
        """Call the subscribers; a change of contents goes only to those that requested it."""
        subscription = self._subscriptions.get(change.directory)
        for on_change, with_contents in tuple(subscription.subscribers.items() if subscription else ()):
            if with_contents or not contents:
                on_change(change)

    def _place(self, path: str, subscription: _Subscription, known: dict[str, int | None]) -> None:
        """Watch each component of a path from the top to the first that does not exist.

        A component is watched before the next one is looked up, so no change in between is missed.
        ``known``: the watches on parent directories that this update has already added.
        """
        parts: list[_Part] = []
        subscription.refused = False
        try:
            for directory, name in self._above(path):
                if directory not in known:
                    known[directory] = self._add(directory, _NAMES)
                if (number := known[directory]) is None:
                    break
                parts.append((number, name))
            else:
                number = self._add(path, _NAMES | _CONTENTS if subscription.contents else _NAMES)
                parts += [] if number is None else [(number, "")]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EMFILE):
                raise _refused(path, error) from error
            subscription.refused = True
        self._replace_parts(path, subscription, frozenset(parts))

    def _above(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the parent directories of a path from the top, each with the next component below it."""
        top = self._top if path.startswith(f"{self._top}/") else ""
        directory = top
        for name in path.removeprefix(top).strip("/").split("/"):
            yield directory or "/", name
            directory = f"{directory}/{name}"

    def _add(self, path: str, mask: Mask) -> int | None:
        """Return the watch on a directory; None if it does not exist.

        :raises OSError: if the kernel refuses it.
        """
        inotify = self._instance.get()
        if inotify is None:
            raise OSError(errno.EMFILE, "no inotify instance")
        try:
            watch = inotify.add_watch(path, mask)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        self._watches[watch.wd] = watch
        return watch.wd

    def _replace_parts(self, path: str, subscription: _Subscription, parts: frozenset[_Part]) -> None:
        before, subscription.parts = subscription.parts, parts
        if parts == before:
            return
        for part in parts - before:
            self._paths.setdefault(part, set()).add(path)
        for part in before - parts:
            self._paths[part].discard(path)
            if not self._paths[part]:
                del self._paths[part]
        used = {number for number, _ in self._paths}
        for number in {number for number, _ in before} - used:
            self._remove(number)

    def _remove(self, number: int) -> None:
        watch, inotify = self._watches.pop(number, None), self._instance.get()
        if watch is not None and inotify is not None:
            with contextlib.suppress(OSError):  # EINVAL: the kernel has already removed the watch
                inotify.rm_watch(watch)


def _new_instance() -> Inotify | None:
    """Return a new instance; None if the kernel refuses it (EMFILE: fs.inotify.max_user_instances)."""
    try:
        return Inotify(cache_size=_BURST)
    except OSError:
        return None


def _refused(directory: str, error: OSError) -> KernelRefused:
    what = f"{directory} cannot be watched: {hints.strerror(error)}"
    return KernelRefused(what, hints.for_errno(error, "list"), errno=error.errno or 0, path=directory)
