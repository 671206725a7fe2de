# SPDX-License-Identifier: Apache-2.0
"""Writes apart. That a dead process keeps nothing while one sleeps: tests/blackbox/test_killed.py."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from nodeagent.base import apart


def test_what_was_there_is_replaced_by_what_is_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("what was there before")
    apart.write(str(file), b"1\n")
    assert file.read_text() == "1\n"


def test_the_error_of_the_kernel_reaches_the_caller(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent") as absent:
        apart.write(str(tmp_path / "absent"), b"1\n")
    assert absent.value.errno == errno.ENOENT
    with pytest.raises(OSError) as full:
        apart.write("/dev/full", b"1\n")
    assert full.value.errno == errno.ENOSPC


def test_whoever_writes_has_no_other_descriptor(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = set(os.listdir("/proc/self/task"))
    data = b"1" * (1 << 20)  # more than a pipe holds: it writes until all is read
    writer = threading.Thread(target=apart.write, args=(str(pipe), data))
    writer.start()
    with pipe.open("rb", buffering=0) as reader:
        reader.read(1)
        (task,) = set(os.listdir("/proc/self/task")) - before - {str(writer.native_id)}
        table = Path("/proc/self/task", task, "fd")
        assert [os.readlink(each) for each in table.iterdir()] == [str(pipe)]
        while reader.read(1 << 16):
            pass
    writer.join()
