# SPDX-License-Identifier: Apache-2.0
"""Allows one nodeagent per node: flock(2) on a file in the kubelet's directory that names the owner.

The service of a package and a pod see this file through different mounts, but a lock belongs to the file
and not to its path. The kernel releases the lock when the process ends. The kubelet deletes only sockets in
this directory. The file contains a name that administrators know, because process ids are different in each
container. If the kubelet's directory does not exist or is not writable, a file in nodeagent's own directory
excludes other processes that share it.
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
_MOST = 300  # bytes of the file that are read
_HINTS = {
    POD: "keep one of the two on this node: exclude it from the DaemonSet (nodeSelector), then start this",
    UNIT: "keep one of the two on this node: systemctl disable --now {name}, then start this",
    CONTAINER: "stop that container first if this one is to serve the node",
    PROCESS: "stop that process first if this one is to serve the node",
    "": "keep one of the two on this node: stop its service, or exclude it from the DaemonSet (nodeSelector)",
}


class NodeLock:
    """The locks in the kubelet's directory, and in the agent's ``own`` directory, which is created if
    missing.
    """

    def __init__(self, path: str, own: str | None = None) -> None:
        self._own = own
        self._locked: dict[str, int | None] = {each: None for each in (path, own) if each is not None}

    def take(self) -> None:
        """Lock the directories that exist now and are writable; callers repeat this.

        :raises AlreadyRunning: if another nodeagent has one of the locks.
        """
        if self._own is not None:
            with contextlib.suppress(OSError):  # this directory may be read-only as well
                Path(self._own).mkdir(mode=0o755, parents=True, exist_ok=True)
        for path, descriptor in self._locked.items():
            if not _is_locked_by(descriptor, path):
                self._release(path)
                self._locked[path] = taken = _lock(path)
                if taken is not None:
                    _write_owner(taken, f"{owner(os.environ, _control_groups(), process.has_host_pids())}\n")

    def release(self) -> None:
        """Release all locks."""
        for path in self._locked:
            self._release(path)

    def _release(self, path: str) -> None:
        descriptor, self._locked[path] = self._locked[path], None
        if descriptor is not None:
            _write_owner(descriptor, "")
            os.close(descriptor)


def _is_locked_by(descriptor: int | None, path: str) -> bool:
    """Return True if the locked file is still the one at the path."""
    try:
        return descriptor is not None and os.path.samestat(os.fstat(descriptor), Path(path, LOCK).stat())
    except OSError:
        return False


def _lock(path: str) -> int | None:
    """Return the file descriptor that holds the lock; None if the directory permits no lock.

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
    except OSError:  # the file system does not support locks
        os.close(descriptor)
        return None
    return descriptor


def _write_owner(descriptor: int, text: str) -> None:
    # the lock also works without the owner's name, for example on a full disk
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def refusal(path: str, text: str) -> tuple[str, str]:
    """Return the message and the hint for a lock whose owner wrote this ``text`` into the file."""
    known = text if _NAME.fullmatch(text) else ""  # the owner may be starting, or an older version
    kind, _, name = known.rpartition(" ")
    what = f"another nodeagent serves {path} already" + (f": {known}" if known else "")
    return f"{what}; it continues to run", _HINTS[kind].format(name=name)


def owner(environ: Mapping[str, str], control_groups: str, host_pids: bool) -> str:
    """Return the name of this process for administrators: its pod, systemd unit, container or process id.

    Every container of a pod has the address of the API server in its environment; the pod's host name is
    its name, unless it uses the host network. systemd puts a service into a control group with the
    service's name. A process id is used in the host's PID namespace only: elsewhere it, often 1, would mean
    another process.
    """
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return f"{POD} {os.uname().nodename}"
    for line in control_groups.splitlines():
        unit = line.rpartition("/")[2]
        if unit.endswith(".service"):
            return f"{UNIT} {unit}"
    return f"{PROCESS} {os.getpid()}" if host_pids else f"{CONTAINER} {os.uname().nodename}"


def _control_groups() -> str:
    """Return the lines of cgroups(7) for this process; "" if they cannot be read."""
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""
