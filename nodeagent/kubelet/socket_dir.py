# SPDX-License-Identifier: Apache-2.0
"""A directory of the kubelet with our sockets in it: which kubelet.sock is there, and which of ours.

Level-triggered: an event only makes it read again, and a slow poll reads what raised no event. The kubelet
unlinks every socket in the directory when it starts, and writes its checkpoint there at each list; so events
are filtered by name. The endpoints listen for changes of their own socket and of the kubelet's. A lock keeps
a second nodeagent out. Used for the device-plugins directory, and for plugins_registry if configured.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio

from nodeagent.base import sockets
from nodeagent.base.latest import Latest
from nodeagent.base.watch import Change, DirectoryWatcher
from nodeagent.kubelet.node_lock import NodeLock

KUBELET_SOCKET = "kubelet.sock"
CHECKPOINT = "kubelet_internal_checkpoint"
PREFIX = "nodeagent-"
SUFFIX = ".sock"

Listener = Callable[[str | None], None]
"""Called with the name of the socket of ours that has changed; None: anything may have."""

Identity = tuple[int, int, int]
"""Device, inode, and time of birth in ns, for inode numbers are used again.

The birth of a socket is its mtime: nothing writes to it, and a chmod or chown changes the ctime only.
"""


def socket_name(resource: str, number: int) -> str:
    """A file name for a resource's socket that no other process and no earlier server has had (42 bytes).

    In a container the pid may always be the same; a ``number`` that begins with the time of the start in ms
    is not, and no server lives that short.
    """
    digest = hashlib.sha256(resource.encode()).hexdigest()[:10]
    return f"{PREFIX}{digest}-{os.getpid()}-{number & 0xFFFFFFFF:08x}{SUFFIX}"


class SocketDir:
    """One directory with a kubelet.sock and our sockets."""

    def __init__(
        self, path: str, watcher: DirectoryWatcher, *, exclusive: bool = True, own: str | None = None
    ) -> None:
        """``exclusive``: keep a second nodeagent away, also from our ``own`` directory."""
        self.path = path
        self.kubelet: Latest[Identity | None] = Latest(None)
        self.checkpoint: Latest[int] = Latest(0)
        self._watcher = watcher
        self._lock = NodeLock(path, own) if exclusive else None
        self._numbers = itertools.count(time.time_ns() // 1_000_000)
        self._listeners: set[Listener] = set()
        self._directory: tuple[int, ...] = ()  # device and inode; () if it is absent
        self._born = 0.0

    @property
    def age(self) -> float:
        """Seconds since the present kubelet.sock was first seen."""
        return time.monotonic() - self._born

    @property
    def exists(self) -> bool:
        """True if the directory was there when it was read last."""
        return bool(self._directory)

    @property
    def kubelet_path(self) -> str:
        """The kubelet's Registration socket."""
        return f"{self.path}/{KUBELET_SOCKET}"

    def open(self) -> None:
        """Lock the directory, clear own leftovers, start to watch.

        :raises AlreadyRunning: if another nodeagent has the lock.
        """
        self._watcher.watch(self.path, self._on_change)
        self.scan()

    def close(self) -> None:
        """Stop watching and release the lock."""
        self._watcher.unwatch(self.path, self._on_change)
        if self._lock is not None:
            self._lock.release()

    def new_name(self, resource: str) -> str:
        """A name for the next socket of a resource: never one that was used before."""
        return socket_name(resource, next(self._numbers))

    @contextlib.contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Call the listener at each change until the end of the block."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    async def run(self, pause: float) -> None:
        """Scan every ``pause`` seconds, for ever: some changes raise no event."""
        while True:
            await anyio.sleep(pause)
            self.scan()
            self._notify(None)

    def scan(self) -> None:
        """Read the state of the directory.

        :raises AlreadyRunning: if it was created again, and another nodeagent has locked it.
        """
        if self._lock is not None:
            self._lock.take()
        directory = (_identity(self.path) or ())[:2]  # an entry that comes changes the time
        if directory != self._directory:
            self._directory = directory
            _clear_leftovers(self.path)
        identity = _identity(self.kubelet_path)
        if identity != self.kubelet.get():
            self._born = time.monotonic()
            self.kubelet.set(identity)
            self._notify(None)

    def _on_change(self, change: Change) -> None:
        if change.lost or change.name is None:
            self.scan()
            self._notify(None)
        elif change.name == KUBELET_SOCKET:
            self.scan()
        elif change.name == CHECKPOINT:
            self.checkpoint.set(self.checkpoint.get() + 1)
        elif _is_ours(change.name):
            self._notify(change.name)

    def _notify(self, name: str | None) -> None:
        for listener in tuple(self._listeners):
            listener(name)


def _clear_leftovers(path: str) -> None:
    """Remove our own socket files that no process serves any more."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # there may be no directory
        names = os.listdir(path)
    for name in names:
        if _is_ours(name) and not sockets.is_served(f"{path}/{name}"):
            with contextlib.suppress(OSError):  # another kind of file, or a read-only directory
                Path(path, name).unlink(missing_ok=True)


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


def _identity(path: str) -> Identity | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
