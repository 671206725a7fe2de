# SPDX-License-Identifier: Apache-2.0
"""A file whose readers sleep in the kernel where no signal reaches them, for as long as a test wants.

A request that a FUSE server has read and does not answer is waited for also after SIGKILL, in state D
(``request_wait_answer`` in fs/fuse/dev.c), as a read of sysfs is that waits for a virtual machine. One that
the server has not read yet is withdrawn by SIGKILL, and who waits in the same function for it just ends. The
file system here is one file, mounted over the one that is to hang. It takes root.

As a program it needs the standard library and ``tests.freezing`` alone, so it can run in another system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import freezing

DEVICE = "/dev/fuse"
_REQUEST = struct.Struct("=IIQQIIIHH")  # fuse_in_header of linux/fuse.h
_THREAD = 6  # of its fields: who asks
_OFFSET = struct.Struct("=8xQ")  # of fuse_read_in
_REPLY = struct.Struct("=IiQ")  # fuse_out_header
_GETATTR, _OPEN, _READ, _INIT, _INTERRUPT = 3, 14, 15, 26, 36  # enum fuse_opcode
_SILENT = (2, 42, _INTERRUPT)  # no reply is wanted: FORGET, BATCH_FORGET
_NOT_KNOWN = -38  # ENOSYS
_MOST = 1 << 17  # bytes of a request; the kernel wants room for more than 8 KiB
_WAIT = "request_wait_answer"
_DETACH = 2  # MNT_DETACH of umount(2)


def possible() -> bool:
    """True if this process may mount such a file system."""
    return os.geteuid() == 0 and Path(DEVICE).exists()


class Unanswered:
    """One file, as it was; but at times nobody who reads it gets an answer."""

    def __init__(self, descriptor: int, content: bytes) -> None:
        self._descriptor = descriptor
        self._content = content
        self._hangs = False
        self._asked: list[bytes] = []  # and not answered yet
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Who begins to read the file meanwhile sleeps until the end."""
        self._hangs = True
        try:
            yield
        finally:
            with self._lock:
                self._hangs = False
                while self._asked:
                    self._answer(self._asked.pop())

    def sleepers(self, pid: int) -> list[Path]:
        """The threads of a process that no signal wakes: what they wait for was read here."""
        with self._lock:
            held = {str(_REQUEST.unpack_from(request)[_THREAD]) for request in self._asked}
        return [thread for thread in freezing.waiting(pid, _WAIT) if thread.name in held]

    def serve(self, until: int) -> None:
        """Answer the kernel until there is something to read from that descriptor."""
        with contextlib.suppress(OSError):  # ENODEV: unmounted, and nobody sleeps
            while until not in select.select([self._descriptor, until], [], [])[0]:
                with self._lock, contextlib.suppress(BlockingIOError, FileNotFoundError):  # who asked is gone
                    self._take(os.read(self._descriptor, _MOST))

    def _take(self, request: bytes) -> None:
        if self._hangs and _REQUEST.unpack_from(request)[1] == _READ:
            self._asked.append(request)
        else:
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        _, opcode, unique, *_ = _REQUEST.unpack_from(request)
        if opcode not in _SILENT:
            (at,) = _OFFSET.unpack_from(request, _REQUEST.size) if opcode == _READ else (0,)
            self._reply(unique, opcode, at)

    def _reply(self, unique: int, opcode: int, at: int) -> None:
        answers: dict[int, Callable[[], bytes]] = {
            _INIT: lambda: struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0),
            _GETATTR: lambda: struct.pack("=QII", 0, 0, 0) + self._attributes(),
            _OPEN: lambda: struct.pack("=QII", 0, 1, 0),  # FOPEN_DIRECT_IO: no read is answered from memory
            _READ: lambda: self._content[at:],
        }
        answer = answers[opcode]() if opcode in answers else b""
        error = 0 if opcode in answers else _NOT_KNOWN
        os.write(self._descriptor, _REPLY.pack(_REPLY.size + len(answer), error, unique) + answer)

    def _attributes(self) -> bytes:
        """fuse_attr: a file of this size for all to read."""
        mode = stat.S_IFREG | 0o644
        return struct.pack("=6Q10I", 1, len(self._content), 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


@contextlib.contextmanager
def unanswered(path: Path) -> Iterator[Unanswered]:
    """This file on such a file system; at the end who sleeps gets an error, and the file is as before."""
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    file, end = Unanswered(descriptor, path.read_bytes()), os.eventfd(0)
    options = f"fd={descriptor},rootmode={stat.S_IFREG:o},user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"fuse", bytes(path), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount", path)
    server = threading.Thread(target=file.serve, args=(end,), daemon=True)
    server.start()
    try:
        yield file
    finally:
        libc.umount2(bytes(path), _DETACH)
        os.eventfd_write(end, 1)
        server.join()
        os.close(end)
        os.close(descriptor)  # the last one: whoever sleeps is woken


def main(path: str) -> None:
    """Answers lines: after the first the file is served, after the second it hangs.

    Each further one is a pid, and the answer how many threads of it sleep.
    """
    with unanswered(Path(path)) as file:
        sys.stdin.readline()
        print("served", flush=True)
        sys.stdin.readline()
        with file.hanging():
            print("hanging", flush=True)
            for pid in sys.stdin:
                print(len(file.sleepers(int(pid))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
