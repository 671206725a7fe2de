# SPDX-License-Identifier: Apache-2.0
"""The kubelet's device-plugins directory: whose kubelet.sock is there, which of our sockets, who else serves.

Knows names and inodes, not gRPC. Level-triggered: an event only makes it look again, and a slow poll looks
for what no event told. The kubelet unlinks every socket in the directory when it starts, and writes a
checkpoint there at each list; so events are taken by name, never "something happened".
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from nodeagent.base import sockets
from nodeagent.base.errors import AlreadyRunning
from nodeagent.base.latest import Latest
from nodeagent.base.watching import Change, Watcher

KUBELET_SOCKET = "kubelet.sock"
CHECKPOINT = "kubelet_internal_checkpoint"
LOCK = "nodeagent.lock"
PREFIX = "nodeagent-"
POLL = 10.0  # seconds; the net under inotify

Identity = tuple[int, int, int]
"""Device, inode, and time of birth in ns, for inode numbers are used again.

The birth of a socket is its mtime: nothing writes to it, and a chmod or chown changes the ctime only.
"""


def socket_name(resource: str, start: int, serial: int) -> str:
    """A file name for a resource's socket that no other process and no earlier life has had (42 bytes).

    In a container the pid may always be the same; ``start`` (in ms) is not, and no life is that short.
    """
    digest = hashlib.sha256(resource.encode()).hexdigest()[:10]
    return f"{PREFIX}{digest}-{os.getpid()}-{(start + serial) & 0xFFFFFFFF:08x}.sock"


class SocketDir:
    """One directory with a kubelet.sock. Subscribers are poked when something of theirs may have changed."""

    def __init__(self, path: str, watcher: Watcher, *, exclusive: bool = True) -> None:
        """``exclusive``: take the lock that keeps a second nodeagent away."""
        self.path = path
        self._exclusive = exclusive
        self.kubelet: Latest[Identity | None] = Latest(None)
        self.checkpoint: Latest[int] = Latest(0)
        self._watcher = watcher
        self._pokes: dict[str, Callable[[], None]] = {}
        self._start = time.time_ns() // 1_000_000
        self._serial = 0
        self._lock: int | None = None
        self._inode: int | None = None
        self._born = 0.0

    @property
    def age(self) -> float:
        """Seconds since the present kubelet.sock was first seen."""
        return time.monotonic() - self._born

    @property
    def exists(self) -> bool:
        """True if the directory was there at the last look."""
        return self._inode is not None

    @property
    def kubelet_path(self) -> str:
        """The kubelet's Registration socket."""
        return f"{self.path}/{KUBELET_SOCKET}"

    def open(self) -> None:
        """Lock the directory, clear own leftovers, start to watch.

        Raises AlreadyRunning if another nodeagent has the lock.
        """
        self._watcher.watch(self.path, self._on_change)
        self.look()

    def close(self) -> None:
        """Stop watching and give the lock back."""
        self._watcher.unwatch(self.path, self._on_change)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def new_name(self, resource: str) -> str:
        """A name for the next socket of a resource, whoever serves it: never one that was used before."""
        self._serial += 1
        return socket_name(resource, self._start, self._serial)

    def subscribe(self, name: str, poke: Callable[[], None]) -> None:
        """Poke when the file ``name`` comes or goes, and whenever the kubelet's socket changes."""
        self._pokes[name] = poke

    def unsubscribe(self, name: str) -> None:
        """End a subscription."""
        self._pokes.pop(name, None)

    async def run(self) -> None:
        """Look again every few seconds, for ever."""
        while True:
            await anyio.sleep(POLL)
            self.look()
            self._poke_all()

    def look(self) -> None:
        """Read the state of the directory; raises AlreadyRunning if it was made anew and taken by another."""
        inode = _inode(self.path)
        if inode != self._inode or not self._lock_holds():
            self._inode = inode
            self._take()
        identity = _identity(self.kubelet_path)
        if identity != self.kubelet.get():
            self._born = time.monotonic()
            self.kubelet.set(identity)
            self._poke_all()

    def _on_change(self, change: Change) -> None:
        if change.lost:
            self.look()
            self._poke_all()
        elif change.name == KUBELET_SOCKET:
            self.look()
        elif change.name == CHECKPOINT:
            self.checkpoint.set(self.checkpoint.get() + 1)
        elif change.name in self._pokes:
            self._pokes[change.name]()

    def _poke_all(self) -> None:
        for poke in tuple(self._pokes.values()):
            poke()

    def _take(self) -> None:
        """Lock the directory that is there now; a lock in one that was removed is worth nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._inode is None:
            return
        if self._exclusive:
            self._lock = _locked(self.path)
        for name in leftovers(self.path):
            with contextlib.suppress(OSError):  # a directory may be read-only
                Path(self.path, name).unlink()

    def _lock_holds(self) -> bool:
        """False if the locked file is not the directory's any more: inode numbers are used again."""
        if self._lock is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._lock), Path(self.path, LOCK).stat())
        except OSError:
            return False


def leftovers(path: str) -> tuple[str, ...]:
    """Our own socket files that nobody serves any more."""
    try:
        names = os.listdir(path)
    except OSError:
        return ()
    ours = (name for name in names if name.startswith(PREFIX) and name.endswith(".sock"))
    return tuple(name for name in ours if not sockets.is_served(f"{path}/{name}"))


def _locked(path: str) -> int | None:
    """A descriptor that holds the lock; None if the directory vanished or allows no lock."""
    try:
        descriptor = os.open(f"{path}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise AlreadyRunning(
            f"another nodeagent serves {path} already",
            "stop it first (systemctl stop nodeagent, or delete its pod); it goes on undisturbed",
        ) from error
    except OSError:  # a file system without locks
        os.close(descriptor)
        return None
    return descriptor


def _inode(path: str) -> int | None:
    try:
        return Path(path).stat().st_ino
    except OSError:
        return None


def _identity(path: str) -> Identity | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
