# SPDX-License-Identifier: Apache-2.0
"""One write to sysfs, verified: written once, then the effect is waited for, or it counts as a refusal.

A write that returns without an error proves nothing (Linux ignores "0" in the file ``remove`` of an mdev).
It may sleep in the kernel for as long as a virtual machine runs. The only module that writes to sysfs.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from nodeagent.base import advice
from nodeagent.base.advice import Doing
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root

LOG = "the kernel log of the host (dmesg there) may say why"
_HINTS = {
    errno.ENOSPC: "the card says that it has no room for another instance",
    errno.EEXIST: "an instance with this id exists, or its removal waits for whoever has it open",
    errno.ENOENT: "it is gone: the parent driver may have been unloaded",
    errno.ENODEV: "it is gone: the device or its driver went away",
    errno.EINVAL: f"the driver does not take this value; {LOG}",
    errno.EBUSY: "something uses the device",
    errno.EIO: f"the driver failed; {LOG}",
}
_NO_HINTS: Mapping[int, str] = {}


class Write(NamedTuple):
    """A file and the value that goes there; ``otherwise`` says in words that the effect is not there.

    ``hints`` go before the general ones: errno → what a person should know.
    """

    path: str
    value: str
    otherwise: str
    hints: Mapping[int, str] = _NO_HINTS


def verified(root: Root, write: Write, shows: Callable[[], bool], timeouts: Timeouts) -> None:
    """Write once, then read until ``shows``, but not longer than ``write_effect``.

    :raises KernelRefused: with the errno (0: no error, and no effect) and the path.
    """
    _put(root, write)
    if not shown(shows, timeouts):
        what = f"{write.path} was written without an error, but {write.otherwise}"
        raise KernelRefused(what, LOG, path=write.path)


def shown(shows: Callable[[], bool], timeouts: Timeouts) -> bool:
    """Wait for an effect, but not longer than ``write_effect``; False if it has not shown by then."""
    end = time.monotonic() + timeouts.write_effect
    while not shows():
        if time.monotonic() >= end:
            return False
        time.sleep(timeouts.write_effect_poll)
    return True


def refused(number: int, path: str, hints: Mapping[int, str] = _NO_HINTS) -> KernelRefused:
    """The refusal of a write with this errno."""
    error = OSError(number, os.strerror(number))
    known = hints.get(number) or _HINTS.get(number) or advice.on(error, Doing.WRITE) or LOG
    text = f"the kernel refused to write {path}: {error.strerror}"
    return KernelRefused(text, known, errno=number, path=path)


def _put(root: Root, write: Write) -> None:
    """One write call: the kernel takes one value per write."""
    try:
        file = os.open(root.path(write.path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(file, f"{write.value}\n".encode())
        finally:
            os.close(file)
    except OSError as error:
        raise refused(error.errno or errno.EIO, write.path, write.hints) from error
