# SPDX-License-Identifier: Apache-2.0
"""Files whose reading does not return, as if the device behind them were locked: FIFOs in their place."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from nodeagent.sim.host import SimulatedHost

SERVED = 3.0  # seconds in which late readers of a former FIFO are served


def hang(host: SimulatedHost, address: str, name: str) -> None:
    """From now on reading this attribute of a function does not return; the function is announced."""
    path = host.attribute(address, name)
    kept = _kept(host, address, name)
    kept.parent.mkdir(exist_ok=True)
    kept.write_bytes(replace_by_fifo(path))
    host.announce(address)


def unhang(host: SimulatedHost, address: str, name: str) -> None:
    """The attribute can be read again; readers that hang get its content."""
    replace_fifo(host.attribute(address, name), _kept(host, address, name).read_bytes())


def _kept(host: SimulatedHost, address: str, name: str) -> Path:
    """Where the content of a hanging attribute is."""
    return Path(host.path(f"/.hanging/{address}-{name}"))


def replace_by_fifo(path: str) -> bytes:
    """Put a FIFO in the file's place: whoever reads it waits. Return the file's content."""
    aside, content = path + ".new", Path(path).read_bytes()
    os.mkfifo(aside)
    os.replace(aside, path)
    return content


@contextlib.contextmanager
def delaying_writers(path: Path) -> Iterator[None]:
    """A FIFO in the file's place: its writers wait until the end, get EPIPE then, and exit."""
    path.unlink()
    os.mkfifo(path)  # and no rename: the simulated drivers read what comes to be at this name by one
    fifo = os.open(path, os.O_PATH)  # the test may replace it
    try:
        yield
    finally:
        os.close(os.open(f"/proc/self/fd/{fifo}", os.O_RDONLY | os.O_NONBLOCK))
        os.close(fifo)


def replace_fifo(path: str, content: bytes) -> None:
    """Put a file with that content in the FIFO's place, and give the content to each reader that waits.

    Readers are served for a while: one may have found the FIFO, but not opened it yet.
    """
    aside = path + ".new"
    Path(aside).write_bytes(content)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.replace(aside, path)  # before the readers wake up and look again
    threading.Thread(target=_feed, args=(fd, content or b"\n"), daemon=True).start()


def _feed(fifo: int, content: bytes) -> None:
    """A copy for each reader, never two at once, until nobody can be left."""
    end = time.monotonic() + SERVED
    try:
        while time.monotonic() < end:
            if not select.select([fifo], [], [], 0)[0]:
                os.write(fifo, content)
            time.sleep(0.001)
    finally:
        os.close(fifo)
