# SPDX-License-Identifier: Apache-2.0
"""The kernel's watches of one inotify instance, and for which paths each of them is there.

A path is placed: its directory is watched, if there is one, and its nearest existing ancestor in any case,
for the name that leads on to it. Two paths of one directory share a watch, and so do all paths below one
ancestor: a watch ends with the last of them. An ancestor that is watched already is not named to the kernel
again while its path leads to the same directory: a stat is cheaper. Knows no subscribers.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import NamedTuple

from asyncinotify import Event, Inotify, Mask, Watch

BURST = 256  # events that are read at once

_STRUCTURE = Mask.CREATE | Mask.MOVED_TO | Mask.DELETE | Mask.MOVED_FROM
SELF = Mask.DELETE_SELF | Mask.MOVE_SELF
CONTENTS = Mask.CLOSE_WRITE | Mask.ATTRIB
_PLAIN = _STRUCTURE | SELF | Mask.ONLYDIR | Mask.MASK_ADD
_READING = _PLAIN | CONTENTS
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP)
_RACES = 16  # how often directories may come and go while a path is being placed


class Place(NamedTuple):
    """Where a path is watched now."""

    own: int | None = None  # descriptor of the watch on the directory itself
    anchor: tuple[int, str] | None = None  # that on an ancestor, and the next name below it


NOWHERE = Place()


class Armed:
    """One watch of the kernel, and for which paths it is there."""

    __slots__ = ("anchors", "targets", "watch")

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.targets: tuple[str, ...] = ()  # one as a rule, and a set is four times larger
        self.anchors: dict[str, set[str]] = {}  # by the next name below

    @property
    def all(self) -> set[str]:
        """The paths that depend on this watch."""
        return set(self.targets).union(*self.anchors.values())

    def add(self, directory: str) -> None:
        """It is there for this path, too."""
        if directory not in self.targets:
            self.targets = (*self.targets, directory)

    def discard(self, directory: str) -> None:
        """It is not there for this path any more."""
        self.targets = tuple(target for target in self.targets if target != directory)


class _Ancestor(NamedTuple):
    """An ancestor that is watched: the watch, and the directory that its path led to just before."""

    armed: Armed
    identity: tuple[int, int]


class Watches:
    """The watches. All methods are called on the event loop. :raises OSError: if there is no instance."""

    def __init__(self) -> None:
        self._inotify = Inotify(cache_size=BURST)
        self._armed: dict[int, Armed] = {}
        self._ancestors: dict[str, _Ancestor] = {}

    def __len__(self) -> int:
        return len(self._armed)

    def close(self) -> None:
        """Give the instance back."""
        self._inotify.close()

    async def get(self) -> Event:
        """The next event."""
        return await self._inotify.get()

    def armed(self, event: Event) -> Armed | None:
        """What an event is about; None for a watch that was ended. A watch that the kernel ended is gone."""
        armed = self._armed.get(event.watch.wd) if event.watch is not None else None
        if armed is not None and Mask.IGNORED in event.mask:
            del self._armed[armed.watch.wd]
        return armed

    def place(self, directory: str, contents: bool, before: Place) -> Place:
        """Watch a path, and end what ``before`` says and is needed no more.

        ``contents``: also for files that are written, or whose attributes change.
        :raises OSError: ENOSPC if the kernel allows no more watches: then the path stays where it was.
        """
        place = self._find(directory, contents)
        if place.own is not None:
            self._armed[place.own].add(directory)
        if place.anchor is not None:
            descriptor, name = place.anchor
            self._armed[descriptor].anchors.setdefault(name, set()).add(directory)
        own = None if before.own == place.own else before.own
        anchor = None if before.anchor == place.anchor else before.anchor
        self.remove(directory, Place(own, anchor))
        return place

    def remove(self, directory: str, place: Place) -> None:
        """End the watches of a path that no other path needs."""
        if place.own is not None and (armed := self._armed.get(place.own)) is not None:
            armed.discard(directory)
            self._end_unused(armed)
        if place.anchor is None:
            return
        descriptor, name = place.anchor
        if (armed := self._armed.get(descriptor)) is not None and name in armed.anchors:
            armed.anchors[name].discard(directory)
            if not armed.anchors[name]:
                del armed.anchors[name]
            self._end_unused(armed)

    def _find(self, directory: str, contents: bool) -> Place:
        for _ in range(_RACES):
            ancestor, name = self._nearest(directory)
            own = self._add(directory, contents)
            if own is not None or not _leads_on(ancestor.watch, name):
                return Place(None if own is None else own.watch.wd, (ancestor.watch.wd, name))
        ancestor, name = self._nearest(directory)
        return Place(None, (ancestor.watch.wd, name))

    def _nearest(self, directory: str) -> tuple[Armed, str]:
        """A watch on the nearest ancestor that exists, and the name below it."""
        path = directory
        while True:
            path, _, name = path.rpartition("/")
            armed = self._ancestor(path or "/")
            if armed is not None:
                return armed, name
            if not path:
                raise OSError(errno.EACCES, "not even / can be watched")

    def _ancestor(self, path: str) -> Armed | None:
        identity = _identity(path)
        known = self._ancestors.get(path)
        if known is not None:
            if known.identity == identity and self._armed.get(known.armed.watch.wd) is known.armed:
                return known.armed
            del self._ancestors[path]
        armed = self._add(path, False)
        if armed is not None and identity is not None:
            self._ancestors[path] = _Ancestor(armed, identity)
        return armed

    def _add(self, path: str, contents: bool) -> Armed | None:
        """A watch on the directory; None if there is none."""
        try:
            watch = self._inotify.add_watch(path, _READING if contents else _PLAIN)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        armed = self._armed.get(watch.wd)
        if armed is None:
            armed = self._armed[watch.wd] = Armed(watch)
        return armed

    def _end_unused(self, armed: Armed) -> None:
        if armed.targets or armed.anchors:
            return
        del self._armed[armed.watch.wd]
        with contextlib.suppress(OSError):  # EINVAL: the kernel has dropped it already
            self._inotify.rm_watch(armed.watch)


def _leads_on(watch: Watch, name: str) -> bool:
    """True if the next name below an ancestor has turned up meanwhile."""
    return (watch.path / name).is_dir()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        at = os.stat(path)  # noqa: PTH116 - a Path costs more than the call
    except OSError:
        return None
    return at.st_dev, at.st_ino
