# SPDX-License-Identifier: Apache-2.0
"""Watches a kubelet directory for changes of kubelet.sock and of nodeagent's own sockets.

Each event causes the whole directory to be read again, and a slow poll finds changes without an event. The
kubelet unlinks every socket in the directory when it starts, and writes its checkpoint there after each list,
so events are filtered by name. Endpoints are notified of changes of their socket and of kubelet.sock. A lock
in the directory prevents a second nodeagent on the node. This module is used for the device-plugins
directory, and for plugins_registry if configured.
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
DRA_SOCKET = f"{PREFIX}dra{SUFFIX}"  # registers the DRA driver; the only name that is the same in each life

Listener = Callable[[str | None], None]
"""Called with the name of the changed socket of nodeagent, or None if any of them may have changed."""

Identity = tuple[int, int, int]
"""Device, inode and creation time in ns of a socket; inode numbers are reused.

The creation time is the mtime: nothing writes to a socket, and chmod and chown change the ctime only.
"""


def socket_name(resource: str, number: int) -> str:
    """Return a socket file name that no other process or earlier server of the resource has used (42 bytes).

    In a container the pid may be the same after each start; ``number``, which begins with the start time in
    ms, differs.
    """
    digest = hashlib.sha256(resource.encode()).hexdigest()[:10]
    return f"{PREFIX}{digest}-{os.getpid()}-{number & 0xFFFFFFFF:08x}{SUFFIX}"


class SocketDir:
    """One directory with kubelet.sock and the sockets of nodeagent."""

    def __init__(
        self, path: str, watcher: DirectoryWatcher, *, exclusive: bool = True, own: str | None = None
    ) -> None:
        """Create the watch. ``exclusive``: lock this directory and the agent's ``own`` directory."""
        self.path = path
        self.kubelet: Latest[Identity | None] = Latest(None)
        self.checkpoint: Latest[int] = Latest(0)
        self._watcher = watcher
        self._lock = NodeLock(path, own) if exclusive else None
        self._numbers = itertools.count(time.time_ns() // 1_000_000)
        self._listeners: set[Listener] = set()
        self._directory: tuple[int, ...] = ()  # device and inode; () if the directory does not exist
        self._born = 0.0

    @property
    def age(self) -> float:
        """Return the seconds since the current kubelet.sock was first seen."""
        return time.monotonic() - self._born

    @property
    def exists(self) -> bool:
        """Return True if the directory existed at the last scan."""
        return bool(self._directory)

    @property
    def kubelet_path(self) -> str:
        """Return the path of the kubelet's Registration socket."""
        return f"{self.path}/{KUBELET_SOCKET}"

    def open(self) -> None:
        """Lock the directory, remove leftover sockets of nodeagent, and start the watch.

        :raises AlreadyRunning: if another nodeagent has the lock.
        """
        self._watcher.watch(self.path, self._on_change)
        self.scan()

    def close(self) -> None:
        """Stop the watch and release the lock."""
        self._watcher.unwatch(self.path, self._on_change)
        if self._lock is not None:
            self._lock.release()

    def new_name(self, resource: str) -> str:
        """Return a new socket name for a resource, one that was never used before."""
        return socket_name(resource, next(self._numbers))

    @contextlib.contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Call the listener at each change within the ``with`` block."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    async def run(self, pause: float) -> None:
        """Scan the directory every ``pause`` seconds, because some changes raise no event."""
        while True:
            await anyio.sleep(pause)
            self.scan()
            self._notify(None)

    def scan(self) -> None:
        """Read the state of the directory.

        :raises AlreadyRunning: if the directory was created again, and another nodeagent has locked it.
        """
        if self._lock is not None:
            self._lock.take()
        directory = (_identity(self.path) or ())[:2]  # without the time, which changes with each new entry
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
    """Remove nodeagent's socket files that no process serves."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # the directory may not exist
        names = os.listdir(path)
    for name in names:
        if _is_ours(name) and not sockets.is_served(f"{path}/{name}"):
            with contextlib.suppress(OSError):  # not a socket, or a read-only directory
                Path(path, name).unlink(missing_ok=True)


def remove_dra_socket(registry: str) -> None:
    """Remove the registration socket of a DRA driver that is not served any more."""
    with contextlib.suppress(OSError):  # a read-only directory
        Path(registry, DRA_SOCKET).unlink(missing_ok=True)


def _is_ours(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


def _identity(path: str) -> Identity | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
