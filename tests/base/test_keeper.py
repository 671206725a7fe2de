# SPDX-License-Identifier: Apache-2.0
"""A descriptor kept by a thread alone. That it ends with the process: tests/blackbox/test_killed.py."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.base.keeper import Keeper


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def keeper(file: Path) -> Iterator[Keeper]:
    """Keeps the file locked."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    made = Keeper(descriptor)
    yield made
    made.release()


def is_locked(file: Path) -> bool:
    """True if another than this call has the lock."""
    with file.open("w") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def thread() -> Path:
    """The keeper's thread in proc(5)."""
    (one,) = (each for each in threading.enumerate() if each.name == "nodeagent, keeper")
    return Path("/proc/self/task", str(one.native_id))


def targets(table: Path) -> list[str]:
    """What a table of descriptors leads to."""
    return [os.readlink(each) for each in table.iterdir() if os.path.lexists(each)]


@pytest.mark.usefixtures("keeper")
def test_the_thread_has_the_descriptor_alone_and_nothing_else(file: Path) -> None:
    assert targets(thread() / "fd") == [str(file)]
    assert str(file) not in targets(Path("/proc/self/fd"))
    assert is_locked(file)


@pytest.mark.usefixtures("keeper")
def test_no_signal_is_the_keepers() -> None:
    line = next(line for line in (thread() / "status").read_text().splitlines() if line.startswith("SigBlk"))
    blocked = int(line.split()[1], 16)
    assert all(blocked & 1 << number - 1 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def test_what_is_released_is_closed_at_once(file: Path) -> None:
    for _ in range(20):
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kept = Keeper(descriptor)
        assert is_locked(file)
        kept.release()
        assert not is_locked(file)


def test_where_no_thread_can_be_had_the_process_keeps_it(file: Path) -> None:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    before = threading.stack_size(1 << 47)  # more than there are addresses
    try:
        kept = Keeper(descriptor)
    finally:
        threading.stack_size(before)
    assert is_locked(file)
    kept.release()
    assert not is_locked(file)
