# SPDX-License-Identifier: Apache-2.0
"""The loop's thread set apart, each time in a process of its own: it cannot be taken back.

That a dead process keeps nothing while a thread of it sleeps: tests/blackbox/test_killed.py.
"""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, ctypes, gc, os, socket, threading
from pathlib import Path
import anyio
from nodeagent.base import apart, memory, threads

def leads_to(descriptor, thread="thread-self"):
    try:
        return os.readlink(f"/proc/{thread}/fd/{descriptor}")
    except OSError:
        return None

OWN = ()

async def main():
    apart.set_apart(OWN)
"""
WITHOUT_THE_CALL = "ctypes.CDLL = lambda name, **how: object()\n"


def run(body: str, before: str = "") -> list[str]:
    """What a process prints that does this in its loop."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    program = f"{SCRIPT}{lines}{before}anyio.run(main)\n"
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=20, check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_what_the_loop_opens_is_seen_by_no_other_thread() -> None:
    body = """
opened = socket.socket()
print(leads_to(opened.fileno()).startswith("socket"))
print(await threads.call(leads_to, opened.fileno()))
"""
    assert run(body) == ["True", "None"]


def test_what_a_thread_opens_is_seen_by_other_threads_but_not_by_the_loop() -> None:
    body = """
left = await threads.call(os.open, "/dev/zero", os.O_RDONLY)
print(leads_to(left))
others = [await threads.start(leads_to, left).result() for _ in range(3)]
print(*others)
"""
    assert run(body) == ["None", *["/dev/zero"] * 3]


def test_what_was_open_before_is_everybodys_and_a_thread_wakes_the_loop() -> None:
    body = """
print(leads_to(1) == await threads.call(leads_to, 1))
"""
    assert run(body) == ["True"]


def test_what_was_open_before_is_the_loops_alone_where_it_is_to_end_with_it() -> None:
    body = """
print(leads_to(OWN[0]))
print(await threads.call(leads_to, OWN[0]))
"""
    assert run(body, before="OWN = (os.open('/dev/zero', os.O_RDONLY),)\n") == ["/dev/zero", "None"]


def test_a_thread_that_cannot_be_had_is_an_error_of_the_call() -> None:
    body = """
threading.stack_size(1 << 47)
try:
    await threads.call(print)
except RuntimeError:
    print("none")
threading.stack_size(0)
await threads.call(print, "some")
"""
    assert run(body) == ["none", "some"]


def test_where_tables_cannot_be_parted_all_is_shared_and_works() -> None:
    body = """
opened = socket.socket()
print((await threads.call(leads_to, opened.fileno())).startswith("socket"))
"""
    assert run(body, WITHOUT_THE_CALL) == ["True"]
