# SPDX-License-Identifier: Apache-2.0
"""Verified writes to sysfs: a value is written once, and counts as refused if its effect does not appear.

Success of write(2) proves nothing (Linux ignores "0" in the file ``remove`` of an mdev). No other module
writes to sysfs.

``unbind``, ``remove``, ``sriov_numvfs`` and the vGPU types of vendors block as long as a VM has the device
open (``vfio_unregister_group_dev`` in the kernel); other writes to the device then wait for its lock.
SIGKILL does not end such a writer: a daemon with such a thread would keep its sockets and its lock until
the VM ends. So the write is made by a separate process (``write_file.py``) that inherits no descriptor of
the daemon and may outlive it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from nodeagent.base import hints
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.apply import write_file
from nodeagent.kernel.root import Root

LOG = "see the kernel log of the host (dmesg)"
_HINTS = {
    errno.ENOSPC: "the card has no room for another mdev or vGPU",
    errno.EEXIST: "an mdev with this UUID exists, or a process has it open, so that its removal waits",
    errno.ENOENT: "the file no longer exists: the parent driver may have been unloaded",
    errno.ENODEV: "the file no longer exists: the device or its driver was removed",
    errno.EINVAL: f"the driver rejects this value; {LOG}",
    errno.EBUSY: "the device is in use",
    errno.EIO: f"the driver failed; {LOG}",
    errno.ENOMEM: f"the driver could not allocate memory or bus addresses; {LOG}",
}
_NO_HINTS: Mapping[int, str] = {}
# ``create`` of an mdev takes no lock that an open device keeps, and is written hundreds of times in a row.
_NEVER_BLOCK = frozenset({"create"})


def write_verified(
    root: Root,
    timeouts: Timeouts,
    path: str,
    value: str,
    is_done: Callable[[], bool],
    otherwise: str,
    special: Mapping[int, str] = _NO_HINTS,
) -> None:
    """Write once, since the kernel takes one value per write, then wait until ``is_done``.

    ``otherwise`` is the message if the effect does not appear; ``special`` are hints by errno, which replace
    the general hints.

    :raises KernelRefused: with the errno (0: no error, but no effect) and the path.
    """
    file = root.path(path)
    if path.rpartition("/")[2] in _NEVER_BLOCK:
        number = write_file.write_file(file, value)
    else:
        number = _run_writer(path, file, value)
    if number:
        raise refusal(number, path, special)
    if not wait_for_effect(is_done, timeouts):
        raise KernelRefused(f"{path} was written without an error, but {otherwise}", LOG, path=path)


def wait_for_effect(is_done: Callable[[], bool], timeouts: Timeouts) -> bool:
    """Wait up to ``write_effect`` seconds for the effect; return False if it does not appear."""
    end = time.monotonic() + timeouts.write_effect
    while True:
        # no free file descriptor at the moment; the write itself was made
        with contextlib.suppress(KernelRefused):
            if is_done():
                return True
        if time.monotonic() >= end:
            return False
        time.sleep(timeouts.write_effect_poll)


def refusal(number: int, path: str, special: Mapping[int, str] = _NO_HINTS) -> KernelRefused:
    """Return the error for a write with this errno; ``special`` hints replace the general ones."""
    error = OSError(number, os.strerror(number))
    known = special.get(number) or _HINTS.get(number) or hints.for_errno(error, "write") or LOG
    text = f"the kernel refused to write {path}: {error.strerror}"
    return KernelRefused(text, known, errno=number, path=path)


def _run_writer(path: str, file: str, value: str) -> int:
    """Write to the ``file`` of a host path in a separate process; return the errno, 0 after success.

    Blocks until that process ends.

    :raises KernelRefused: if the process does not start, or ends without reporting a result.
    """
    try:
        done = subprocess.run(
            [*_writer(), file, value],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={},
            start_new_session=True,  # Ctrl-C must reach only the daemon
            check=False,
        )
    except OSError as error:
        what = f"{path} is not written: no process can be started for it: {hints.strerror(error)}"
        raise KernelRefused(what, hints.for_errno(error, "run"), path=path) from error
    if not done.stdout.isdecimal():
        output = done.stderr.strip().rpartition("\n")[2][:200] or "no output"
        what = f"{path} may not have been written: the writing process ended with {done.returncode}: {output}"
        raise KernelRefused(what, LOG, path=path)
    return int(done.stdout)


def _writer() -> tuple[str, ...]:
    """Return the command that writes; PATH and VALUE are appended."""
    if getattr(sys, "frozen", False):  # PyInstaller: sys.executable is nodeagent itself
        return sys.executable, write_file.NAME
    return sys.executable, "-I", "-S", write_file.__file__
