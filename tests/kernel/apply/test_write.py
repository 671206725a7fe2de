# SPDX-License-Identifier: Apache-2.0
"""Which process writes, what it has of the daemon, and what is said where there is none."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.apply import write
from nodeagent.kernel.root import Root
from tests import freezing
from tests.facts import names

UNBIND = "/sys/bus/pci/drivers/vfio-pci/unbind"
WITHOUT = """
import sys
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.apply import write
from nodeagent.kernel.root import Root
sys.executable = sys.argv[2]
try:
    write.write_verified(Root(sys.argv[1]), Timeouts(), "/sys/unbind", "1", lambda: True, "no")
except KernelRefused as error:
    print(error.what)
"""


def written(directory: Path, path: str, value: str) -> None:
    write.write_verified(Root(directory), Timeouts(), path, value, lambda: True, "it is not")


@contextmanager
def waiting(path: Path) -> Iterator[list[bytes]]:
    """A writer waits for a reader of this file, until the end; what it has written then."""
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    read: list[bytes] = []
    try:
        yield read
    finally:
        with path.open("rb") as file:
            read.append(file.read())


def opened_by(process: int) -> set[str]:
    """What the process has open, pipes without their number."""
    found: set[str] = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(entry).partition(":")[0])
    return found


def test_a_write_that_blocks_has_no_descriptor_of_the_daemon(tmp_path: Path) -> None:
    before = set(freezing.children(os.getpid()))
    with tempfile.TemporaryFile() as inherited, waiting(tmp_path / UNBIND[1:]) as read:
        os.set_inheritable(inherited.fileno(), True)
        thread = threading.Thread(target=written, args=(tmp_path, UNBIND, "0000:01:00.0"))
        thread.start()
        while not (started := set(freezing.children(os.getpid())) - before):
            assert thread.is_alive()
        (child,) = started
        while "write_file.py" not in Path(f"/proc/{child}/cmdline").read_text():
            assert thread.is_alive()
        while not opened_by(child) <= {"/dev/null", "pipe"}:  # it may still read its own program
            assert thread.is_alive()
    thread.join()
    assert read == [b"0000:01:00.0\n"]


def test_the_errno_of_the_other_process_is_that_of_the_refusal(tmp_path: Path) -> None:
    with pytest.raises(KernelRefused) as caught:
        written(tmp_path, UNBIND, "0000:01:00.0")
    assert (caught.value.errno, caught.value.path) == (2, UNBIND)
    names(caught.value.what, UNBIND, "No such file")


def test_a_lack_of_addresses_is_no_lack_of_memory_for_which_processes_are_to_be_ended() -> None:
    """The kernel reports ENOMEM if the firmware left no room on the bus (sriov_enable, drivers/pci/iov.c)."""
    hint = write.refusal(errno.ENOMEM, UNBIND).hint
    names(hint, "dmesg")
    assert "process" not in hint


@pytest.mark.parametrize(
    ("program", "words"),
    [("/nowhere/python", ["no process can be started"]), ("/bin/false", ["ended with 1", "no output"])],
)
def test_a_write_without_a_process_is_refused(tmp_path: Path, program: str, words: list[str]) -> None:
    command = [sys.executable, "-c", WITHOUT, str(tmp_path), program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names(done.stdout, "/sys/unbind", *words)
