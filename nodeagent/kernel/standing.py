# SPDX-License-Identifier: Apache-2.0
"""What this process may do on its machine, for ``check``. Tries an instance of inotify, and gives it back.

Asks of the process that asks, so it says nothing of a host below another root. Knows nothing of devices.
"""

from __future__ import annotations

import os
from pathlib import Path

from nodeagent.base import process
from nodeagent.kernel.root import Root
from nodeagent.model.surroundings import Standing

_CAPABILITIES = {2: "CAP_DAC_READ_SEARCH", 19: "CAP_SYS_PTRACE"}  # include/uapi/linux/capability.h
_CHOWN = 0
_WHOLE = ["0", "0", "4294967295"]  # user_namespaces(7): the machine's own


def read(root: Root, directories: tuple[str, ...]) -> Standing:
    """What may be done. ``directories``: host paths that are to be written to; one may be absent."""
    effective = process.capabilities() or 0
    return Standing(
        root=os.geteuid() == 0,
        missing_capabilities=tuple(name for bit, name in _CAPABILITIES.items() if not effective >> bit & 1),
        whole_users=_whole_users(),
        read_only=tuple(path for path in directories if _read_only(root.path(path))),
        inotify=_inotify(),
        owners=owners(effective),
    )


def owners(effective: int) -> bool:
    """True if who has these capabilities may give a file to somebody else (CAP_CHOWN)."""
    return bool(effective >> _CHOWN & 1)


def _whole_users() -> bool | None:
    words = _own("uid_map").split()
    return words == _WHOLE if words else None


def _own(name: str) -> str:
    try:
        return Path("/proc/self", name).read_text()
    except OSError:
        return ""


def _read_only(path: str) -> bool:
    """True if the file system below the path, or its nearest ancestor, takes no writes."""
    while not Path(path).exists():
        path = str(Path(path).parent)
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _inotify() -> str | None:
    """Why the kernel gives no instance to this user; None if it does."""
    import ctypes  # here: nobody else may ever ask

    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0:
        return os.strerror(ctypes.get_errno())
    os.close(descriptor)
    return None
