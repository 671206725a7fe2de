# SPDX-License-Identifier: Apache-2.0
"""The lock that keeps a second nodeagent out of a directory: flock(2) on a file in it.

It ends with the process, however that ends. Knows nothing of sockets. A lock in a directory that was removed,
or on a file that was, is worth nothing: ``holds`` tells.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from nodeagent.base.errors import AlreadyRunning

LOCK = "nodeagent.lock"


class DirectoryLock:
    """The lock of the directory at a path; may be taken again and again, for the directory of that moment."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def holds(self) -> bool:
        """False if the locked file is not the directory's any more; True where there was none to lock."""
        if self._descriptor is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._descriptor), Path(self._path, LOCK).stat())
        except OSError:
            return False

    def take(self) -> None:
        """Lock the directory that is there now, if it is there and allows it.

        :raises AlreadyRunning: if another nodeagent has the lock.
        """
        self.release()
        self._descriptor = _locked(self._path)

    def release(self) -> None:
        """Give the lock back, if there is one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _locked(path: str) -> int | None:
    """A descriptor that holds the lock; None if there is no directory, or it allows no lock."""
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
