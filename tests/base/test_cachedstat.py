# SPDX-License-Identifier: Apache-2.0
"""A file is the same as by stat, and a file system that answers nobody is not asked."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.base import cachedstat
from tests.blackbox import silentfs


@pytest.mark.parametrize("path", ["/dev/null", "/proc/self/fd/0", "/etc", __file__])
def test_it_tells_what_stat_tells(path: str) -> None:
    told, expected = cachedstat.status(path), Path(path).stat()
    assert stat.S_IFMT(told.mode) == stat.S_IFMT(expected.st_mode)
    assert told[1:] == (expected.st_dev, expected.st_ino, expected.st_rdev)


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cachedstat.status(str(tmp_path / "nothing"))


def test_a_name_in_bytes_that_are_no_text_is_borne(tmp_path: Path) -> None:
    path = os.fsdecode(bytes(tmp_path) + b"/\xff")
    Path(path).touch()
    assert cachedstat.status(path).inode == Path(path).stat().st_ino


def test_a_file_system_that_answers_nobody_is_not_asked(tmp_path: Path) -> None:
    if not silentfs.possible(tmp_path):
        pytest.skip("no FUSE")
    with silentfs.silent(tmp_path):
        assert stat.S_ISDIR(cachedstat.status(str(tmp_path)).mode)


NO_STATX = """
import ctypes, errno, platform, struct, sys
from nodeagent.base import cachedstat
number = {"x86_64": 332, "aarch64": 291}[platform.machine()]
program = b"".join(
    struct.pack("=HBBI", *each)  # struct sock_filter: of the number of the call, this one is refused
    for each in (
        (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)
    )
)
code = ctypes.create_string_buffer(program)
libc = ctypes.CDLL(None, use_errno=True)
filtering = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filtering, 0, 0):
    sys.exit(77)
print(*cachedstat.status(sys.argv[1]))
"""


def test_where_a_filter_of_system_calls_does_not_know_the_call_stat_does(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NO_STATX, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 77:
        pytest.skip("no filters of system calls")
    found = tmp_path.stat()
    told = f"{found.st_mode} {found.st_dev} {found.st_ino} {found.st_rdev}"
    assert done.stdout.strip() == told, done.stderr
