# SPDX-License-Identifier: Apache-2.0
"""One nodeagent for each node: flock(2) on a file in the kubelet's directory, which names the owner.

A package's service and a pod see the same file through different mounts, and locks are the file's, not the
path's. The lock ends with the process, however that ends. The kubelet deletes only sockets
there. Process ids say nothing across a container's walls, so the file has the name by which people know the
owner. Where the kubelet has no directory yet, or none that can be written, a file in the agent's own keeps
those out that share it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Mapping
from pathlib import Path

from nodeagent.base import process
from nodeagent.base.errors import AlreadyRunning

LOCK = "nodeagent.lock"
POD, UNIT, CONTAINER, PROCESS = "pod", "systemd unit", "container", "process"
_NAME = re.compile(rf"({POD}|{UNIT}|{CONTAINER}|{PROCESS}) [\w.@:\\-]{{1,255}}", re.ASCII)
_MOST = 300  # bytes of the file that count
_HINTS = {
    POD: "keep one of the two on this node: exclude it from the DaemonSet (nodeSelector), then start this",
    UNIT: "keep one of the two on this node: systemctl disable --now {name}, then start this",
    CONTAINER: "stop that container first if this one is to serve the node",
    PROCESS: "stop that process first if this one is to serve the node",
    "": "keep one of the two on this node: stop its service, or exclude it from the DaemonSet (nodeSelector)",
}


class NodeLock:
    """The locks of the kubelet's directory, and of the agent's ``own``, if any, which is made if need be."""

    def __init__(self, path: str, own: str | None = None) -> None:
        self._own = own
        self._locked: dict[str, int | None] = {each: None for each in (path, own) if each is not None}

    def take(self) -> None:
        """Lock the directories that are there now and allow it. To be called again and again.

        :raises AlreadyRunning: if another nodeagent has one of the locks.
        """
        if self._own is not None:
            with contextlib.suppress(OSError):  # it may be read-only as well
                Path(self._own).mkdir(mode=0o755, parents=True, exist_ok=True)
        for path, descriptor in self._locked.items():
            if not _is_locked_by(descriptor, path):
                self._release(path)
                self._locked[path] = taken = _lock(path)
                if taken is not None:
                    _write_owner(taken, f"{owner(os.environ, _control_groups(), process.has_host_pids())}\n")

    def release(self) -> None:
        """Give all locks back."""
        for path in self._locked:
            self._release(path)

    def _release(self, path: str) -> None:
        descriptor, self._locked[path] = self._locked[path], None
        if descriptor is not None:
            _write_owner(descriptor, "")
            os.close(descriptor)


def _is_locked_by(descriptor: int | None, path: str) -> bool:
    """True if the file is still the directory's."""
    try:
        return descriptor is not None and os.path.samestat(os.fstat(descriptor), Path(path, LOCK).stat())
    except OSError:
        return False


def _lock(path: str) -> int | None:
    """A descriptor that locks the file; None if there is no directory, or it allows no lock.

    :raises AlreadyRunning: if another nodeagent has the lock.
    """
    try:
        descriptor = os.open(f"{path}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        text = os.pread(descriptor, _MOST, 0).decode("utf-8", "replace").strip()
        os.close(descriptor)
        raise AlreadyRunning(*refusal(path, text)) from error
    except OSError:  # the file system has no locks
        os.close(descriptor)
        return None
    return descriptor


def _write_owner(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk makes the lock no weaker
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def refusal(path: str, text: str) -> tuple[str, str]:
    """The message and the hint for a lock whose file has this ``text`` of its owner."""
    known = text if _NAME.fullmatch(text) else ""  # it may be just starting, or of an older version
    kind, _, name = known.rpartition(" ")
    what = f"another nodeagent serves {path} already" + (f": {known}" if known else "")
    return f"{what}; it goes on undisturbed", _HINTS[kind].format(name=name)


def owner(environ: Mapping[str, str], control_groups: str, host_pids: bool) -> str:
    """The name by which people know this process: its pod, its systemd unit, its container or its process id.

    A pod's host name is its own unless it uses the host's network; every container of a pod gets the address
    of the API server. systemd puts a service into a control group of its name. Process ids mean
    something in the host's namespace only: elsewhere ours, often 1, would be read as another process.
    """
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return f"{POD} {os.uname().nodename}"
    for line in control_groups.splitlines():
        unit = line.rpartition("/")[2]
        if unit.endswith(".service"):
            return f"{UNIT} {unit}"
    return f"{PROCESS} {os.getpid()}" if host_pids else f"{CONTAINER} {os.uname().nodename}"


def _control_groups() -> str:
    """The lines of cgroups(7), "" if they cannot be read."""
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""
