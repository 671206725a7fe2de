# SPDX-License-Identifier: Apache-2.0
"""Watching directories: subscriptions on the one inotify instance of the process.

A subscription is for a path and outlives the directory behind it: absent, removed, moved away or made
anew, it stays armed, because beside the directory its nearest existing ancestor is watched for the name
that leads to it (``inotify``), and all are placed anew when the mounts have changed. After each re-arming,
and when the kernel's queue has overflowed, subscribers hear ``lost``: list it again. What the kernel refuses
to watch, or all where it gives no instance, is polled: its subscribers hear ``lost`` from time to time. One
reader, which is not cancelled while the process works: cancelling ``Inotify.get`` of asyncinotify 4.4 loses
the events that it has read. Gathering is left to subscribers.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import anyio
import anyio.lowlevel
from asyncinotify import Event, Mask

from nodeagent.base import advice, inotify
from nodeagent.base.advice import Doing
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest


class Change(NamedTuple):
    """Something happened in ``directory``, to ``name``; ``lost``: anything may have happened."""

    directory: str
    name: str | None = None
    lost: bool = False


OnChange = Callable[[Change], None]


class _Subscription:
    """All subscribers of one path, and where it is armed now."""

    __slots__ = ("listeners", "place", "readers", "refused")

    def __init__(self) -> None:
        self.listeners: tuple[OnChange, ...] = ()
        self.readers: tuple[OnChange, ...] = ()  # want changes of contents, too
        self.place = inotify.NOWHERE
        self.refused = False  # by the kernel, which allows no more watches

    def add(self, on_change: OnChange, contents: bool) -> None:
        """One more subscriber."""
        if contents:
            self.readers = (*self.readers, on_change)
        else:
            self.listeners = (*self.listeners, on_change)

    def remove(self, on_change: OnChange) -> bool:
        """End one subscriber's share; True if nobody is left."""
        self.listeners = _without(self.listeners, on_change)
        self.readers = _without(self.readers, on_change)
        return not self.listeners and not self.readers

    def tell(self, change: Change, contents: bool = False) -> None:
        """Call the subscribers; of contents only those who asked."""
        listeners = () if contents else self.listeners
        for listener in (*listeners, *self.readers):
            listener(change)


def _without(subscribers: tuple[OnChange, ...], one: OnChange) -> tuple[OnChange, ...]:
    at = subscribers.index(one) if one in subscribers else len(subscribers)
    return (*subscribers[:at], *subscribers[at + 1 :])


class Watcher:
    """Subscriptions on one inotify instance. All methods are called on the event loop.

    ``instance`` has None as long as the kernel gives out no more of them.
    """

    def __init__(self) -> None:
        self.instance: Latest[inotify.Watches | None] = Latest(_instance())
        self._subscriptions: dict[str, _Subscription] = {}
        self._refusals: Latest[None] = Latest(None)
        self._ran = False
        self.overflows = 0

    @property
    def unwatched(self) -> tuple[str, ...]:
        """The directories that the kernel refuses to watch at present: they are polled."""
        return tuple(directory for directory, each in self._subscriptions.items() if each.refused)

    @property
    def watches(self) -> int:
        """How many watches of the kernel are in use."""
        watches = self.instance.get()
        return 0 if watches is None else len(watches)

    def close(self) -> None:
        """Give the instance back."""
        if (watches := self.instance.get()) is not None:
            watches.close()

    def watch(self, directory: str, on_change: OnChange, *, contents: bool = False) -> bool:
        """Call ``on_change`` for every name that comes, goes or is replaced in ``directory``.

        With ``contents`` also when a file in it was written or its attributes were changed. List the
        directory after this call, not before. Returns False if the kernel allows no more watches
        (fs.inotify.max_user_watches): then it is ``unwatched`` until there are some again.
        """
        subscription = self._subscriptions.setdefault(directory, _Subscription())
        subscription.add(on_change, contents)
        return self._arm(directory, subscription)

    def unwatch(self, directory: str, on_change: OnChange) -> None:
        """End a subscription; one that does not exist is ignored."""
        subscription = self._subscriptions.get(directory)
        if subscription is not None and subscription.remove(on_change):
            del self._subscriptions[directory]
            if (watches := self.instance.get()) is not None:
                watches.remove(directory, subscription.place)

    def mounts_changed(self) -> None:
        """Watch what the paths lead to now, and tell where it is another directory: no event says so."""
        for directory, subscription in tuple(self._subscriptions.items()):
            before = subscription.place.own
            self._arm(directory, subscription)
            if subscription.place.own != before:
                subscription.tell(Change(directory, lost=True))

    async def keep_trying(self, pause: float) -> None:
        """While there is anything that was refused, ask again for it every ``pause`` seconds, for ever.

        Its subscribers hear each time that they must list it: nothing else tells them of changes.
        """
        while True:
            if self.unwatched:
                await anyio.sleep(pause)
                if self.instance.get() is None:
                    self.instance.set(_instance())
                self._rearm(self.unwatched, tell_always=True)
            else:
                await self._refusals.newer(self._refusals.version)

    async def run(self) -> None:
        """Read events and tell the subscribers, for ever; without an instance wait for one."""
        while (watches := self.instance.get()) is None:
            await self.instance.newer(self.instance.version)
        if self._ran:
            self._rearm(self._subscriptions, tell_always=True)
        self._ran = True
        while True:
            for _ in range(inotify.BURST):
                self._dispatch(await watches.get(), watches)
            await anyio.lowlevel.checkpoint()

    def _dispatch(self, event: Event, watches: inotify.Watches) -> None:
        if Mask.Q_OVERFLOW in event.mask:
            self.overflows += 1
            self._rearm(self._subscriptions, tell_always=True)
            return
        armed = watches.armed(event)
        if armed is None:
            return
        if event.mask & (inotify.SELF | Mask.IGNORED):
            self._rearm(armed.all)
        elif event.name is not None:
            contents, name = bool(event.mask & inotify.CONTENTS), str(event.name)
            _tell(self._subscriptions, armed.targets, name, contents)
            if not contents:
                self._rearm(armed.anchors.get(name, ()))

    def _rearm(self, directories: Iterable[str], tell_always: bool = False) -> None:
        """Arm anew; subscribers of those that are, or were, watched themselves hear that they must list."""
        for directory in tuple(directories):
            subscription = self._subscriptions.get(directory)
            if subscription is None:
                continue
            before = subscription.place.own
            self._arm(directory, subscription)
            if tell_always or before is not None or subscription.place.own is not None:
                subscription.tell(Change(directory, lost=True))

    def _arm(self, directory: str, subscription: _Subscription) -> bool:
        """Watch the directory if it is there, and its nearest existing ancestor in any case."""
        watches, readers = self.instance.get(), bool(subscription.readers)
        try:
            place = None if watches is None else watches.place(directory, readers, subscription.place)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise _refused(directory, error) from error
            place = None
        subscription.refused = place is None
        if place is None:
            self._refusals.touch()
            return False
        subscription.place = place
        return True


def _tell(
    subscriptions: Mapping[str, _Subscription], directories: Iterable[str], name: str, contents: bool
) -> None:
    for directory in directories:
        if directory in subscriptions:
            subscriptions[directory].tell(Change(directory, name), contents)


def _instance() -> inotify.Watches | None:
    """None if the kernel gives out no more (EMFILE: fs.inotify.max_user_instances)."""
    try:
        return inotify.Watches()
    except OSError:
        return None


def _refused(directory: str, error: OSError) -> KernelRefused:
    what = f"{directory} cannot be watched: {advice.words(error)}"
    return KernelRefused(what, advice.on(error, Doing.LIST), errno=error.errno or 0, path=directory)
