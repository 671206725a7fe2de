# SPDX-License-Identifier: Apache-2.0
"""Watching directories: the one inotify instance of the process, and the only user of asyncinotify.

A subscription is for a path and outlives the directory behind it: absent, removed, moved away or made
anew, it stays armed, because beside the directory its nearest existing ancestor is watched for the name
that leads to it. After each re-arming, and when the kernel's queue has overflowed, subscribers are told
``lost``: list it again. One reader, which is not cancelled while the process works: cancelling
``Inotify.get`` of asyncinotify 4.4 loses the events that it has read. Gathering is left to subscribers.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio
import anyio.lowlevel
from asyncinotify import Event, Inotify, Mask, Watch

from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest

_CAME = Mask.CREATE | Mask.MOVED_TO
_STRUCTURE = _CAME | Mask.DELETE | Mask.MOVED_FROM
_SELF = Mask.DELETE_SELF | Mask.MOVE_SELF
_CONTENTS = Mask.CLOSE_WRITE | Mask.ATTRIB
_PLAIN = _STRUCTURE | _SELF | Mask.ONLYDIR | Mask.MASK_ADD
_READING = _PLAIN | _CONTENTS
_BURST = 256  # events between two turns of the event loop
_RACES = 16  # how often directories may come and go while one is being armed
_AGAIN = 10.0  # seconds until what the kernel refused to watch is asked for again


class Change(NamedTuple):
    """Something happened in ``directory``, to ``name``; ``lost``: anything may have happened."""

    directory: str
    name: str | None = None
    lost: bool = False


OnChange = Callable[[Change], None]


@dataclass(slots=True)
class _Subscription:
    """All subscribers of one path, and where it is armed now."""

    listeners: list[OnChange] = field(default_factory=list)
    readers: list[OnChange] = field(default_factory=list)  # want changes of contents, too
    own: int | None = None  # descriptor of the watch on the directory itself
    anchor: tuple[int, str] | None = None  # that on an ancestor, and the next name below it
    refused: bool = False  # by the kernel, which allows no more watches


@dataclass(slots=True)
class _Armed:
    """One watch of the kernel, and for which paths it is there."""

    watch: Watch
    targets: set[str] = field(default_factory=set)
    anchors: dict[str, set[str]] = field(default_factory=dict)


class Watcher:
    """The inotify instance. All methods are called on the event loop.

    :raises KernelRefused: if the kernel gives out no more instances.
    """

    def __init__(self) -> None:
        try:
            self._inotify = Inotify(cache_size=_BURST)
        except OSError as error:
            raise KernelRefused(
                f"no inotify instance: {error.strerror}",
                "raise the kernel setting fs.inotify.max_user_instances",
                errno=error.errno or 0,
            ) from error
        self._subscriptions: dict[str, _Subscription] = {}
        self._armed: dict[int, _Armed] = {}
        self._refusals: Latest[None] = Latest(None)
        self._ran = False
        self.overflows = 0

    @property
    def unwatched(self) -> tuple[str, ...]:
        """The directories that the kernel refuses to watch at present: of these nothing is told."""
        return tuple(directory for directory, each in self._subscriptions.items() if each.refused)

    @property
    def watches(self) -> int:
        """How many watches of the kernel are in use."""
        return len(self._armed)

    def close(self) -> None:
        """Give the instance back."""
        self._inotify.close()

    def watch(self, directory: str, on_change: OnChange, *, contents: bool = False) -> bool:
        """Call ``on_change`` for every name that comes, goes or is replaced in ``directory``.

        With ``contents`` also when a file in it was written or its attributes were changed. List the
        directory after this call, not before. Returns False if the kernel allows no more watches
        (fs.inotify.max_user_watches): then it is ``unwatched`` until there are some again.
        """
        subscription = self._subscriptions.setdefault(directory, _Subscription())
        (subscription.readers if contents else subscription.listeners).append(on_change)
        return self._arm(directory, subscription)

    def unwatch(self, directory: str, on_change: OnChange) -> None:
        """End a subscription; one that does not exist is ignored."""
        subscription = self._subscriptions.get(directory)
        if subscription is None:
            return
        for listeners in (subscription.listeners, subscription.readers):
            if on_change in listeners:
                listeners.remove(on_change)
        if not subscription.listeners and not subscription.readers:
            del self._subscriptions[directory]
            if subscription.own is not None:
                self._drop_target(subscription.own, directory)
            if subscription.anchor is not None:
                self._drop_anchor(*subscription.anchor, directory)

    async def keep_trying(self, pause: float = _AGAIN) -> None:
        """While there is anything that was refused, ask again for it after each pause, for ever."""
        while True:
            if self.unwatched:
                await anyio.sleep(pause)
                self._rearm(self.unwatched)  # its subscribers are told to list what is watched by now
            else:
                await self._refusals.newer(self._refusals.version)

    async def run(self) -> None:
        """Read events and tell the subscribers, for ever."""
        if self._ran:
            self._tell_all()
        self._ran = True
        while True:
            for _ in range(_BURST):
                self._dispatch(await self._inotify.get())
            await anyio.lowlevel.checkpoint()

    def _dispatch(self, event: Event) -> None:
        if Mask.Q_OVERFLOW in event.mask:
            self.overflows += 1
            self._tell_all()
            return
        armed = self._armed.get(event.watch.wd) if event.watch is not None else None
        if armed is None:
            return
        if Mask.IGNORED in event.mask:
            del self._armed[armed.watch.wd]
        if event.mask & (_SELF | Mask.IGNORED):
            self._rearm(armed.targets.union(*armed.anchors.values()))
        elif event.name is not None:
            self._changed(armed, event.mask, str(event.name))

    def _changed(self, armed: _Armed, mask: Mask, name: str) -> None:
        contents = bool(mask & _CONTENTS)
        for directory in tuple(armed.targets):
            self._tell(Change(directory, name), contents)
        if not contents:
            self._rearm(armed.anchors.get(name, ()))

    def _tell(self, change: Change, contents: bool = False) -> None:
        subscription = self._subscriptions.get(change.directory)
        if subscription is None:
            return
        listeners = () if contents else tuple(subscription.listeners)
        for listener in (*listeners, *subscription.readers):
            listener(change)

    def _tell_all(self) -> None:
        self._rearm(self._subscriptions, tell_always=True)

    def _rearm(self, directories: Iterable[str], tell_always: bool = False) -> None:
        """Arm anew; tell those that are, or were, watched themselves that they must be listed again."""
        for directory in tuple(directories):
            subscription = self._subscriptions.get(directory)
            if subscription is None:
                continue
            before = subscription.own
            self._arm(directory, subscription)
            if tell_always or before is not None or subscription.own is not None:
                self._tell(Change(directory, lost=True))

    def _arm(self, directory: str, subscription: _Subscription) -> bool:
        """Watch the directory if it is there, and its nearest existing ancestor in any case."""
        old_own, old_anchor = subscription.own, subscription.anchor
        try:
            own, anchor = self._place(directory, bool(subscription.readers))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise _refused(directory, error) from error
            self._refusals.touch()
            subscription.refused = True
            return False
        subscription.refused = False
        subscription.own, subscription.anchor = own, anchor
        if own is not None:
            self._armed[own].targets.add(directory)
        self._armed[anchor[0]].anchors.setdefault(anchor[1], set()).add(directory)
        if old_own is not None and old_own != own:
            self._drop_target(old_own, directory)
        if old_anchor is not None and old_anchor != anchor:
            self._drop_anchor(*old_anchor, directory)
        return True

    def _place(self, directory: str, contents: bool) -> tuple[int | None, tuple[int, str]]:
        for _ in range(_RACES):
            anchor = self._anchor(directory)
            own = self._add(directory, contents)
            if own is not None or not _leads_on(self._armed[anchor[0]].watch, anchor[1]):
                return own, anchor
        return None, self._anchor(directory)

    def _anchor(self, directory: str) -> tuple[int, str]:
        """A watch on the nearest ancestor that exists, and the name below it."""
        path = directory
        while True:
            path, _, name = path.rpartition("/")
            descriptor = self._add(path or "/", False)
            if descriptor is not None:
                return descriptor, name
            if not path:
                raise OSError(errno.EACCES, "not even / can be watched")

    def _add(self, path: str, contents: bool) -> int | None:
        """The descriptor of a watch on the directory; None if there is none."""
        try:
            watch = self._inotify.add_watch(path, _READING if contents else _PLAIN)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
                return None
            raise
        self._armed.setdefault(watch.wd, _Armed(watch))
        return watch.wd

    def _drop_target(self, descriptor: int, directory: str) -> None:
        armed = self._armed.get(descriptor)
        if armed is not None:
            armed.targets.discard(directory)
            self._drop_unused(armed)

    def _drop_anchor(self, descriptor: int, name: str, directory: str) -> None:
        armed = self._armed.get(descriptor)
        if armed is not None and name in armed.anchors:
            armed.anchors[name].discard(directory)
            if not armed.anchors[name]:
                del armed.anchors[name]
            self._drop_unused(armed)

    def _drop_unused(self, armed: _Armed) -> None:
        if armed.targets or armed.anchors:
            return
        del self._armed[armed.watch.wd]
        with contextlib.suppress(OSError):  # EINVAL: the kernel has dropped it already
            self._inotify.rm_watch(armed.watch)


def _leads_on(watch: Watch, name: str) -> bool:
    """True if the next name below an ancestor has turned up meanwhile."""
    return (watch.path / name).is_dir()


def _refused(directory: str, error: OSError) -> KernelRefused:
    return KernelRefused(
        f"{directory} cannot be watched: {error.strerror}", errno=error.errno or 0, path=directory
    )
