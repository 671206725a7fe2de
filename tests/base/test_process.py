# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of this process, against what it can know by itself."""

from __future__ import annotations

import os
import threading
import time

from nodeagent.base import process, threads

PATIENCE = 10.0  # seconds


def test_the_numbers_are_those_of_this_process() -> None:
    now = process.read_numbers()
    assert 0 < time.time() - now.started < 24 * 3600
    assert now.started == process.read_numbers().started
    assert 0 < now.cpu_seconds <= time.process_time() + 1
    assert 5 << 20 < now.resident_bytes < 5 << 30
    assert now.threads == len(os.listdir("/proc/self/task"))
    assert now.open_files < now.most_files


def test_what_is_opened_and_started_is_counted() -> None:
    for other in threading.enumerate():  # some of another test may be about to end
        if other.name.startswith(threads.NAME):
            other.join(PATIENCE)
    before, stop = process.read_numbers(), threading.Event()
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    thread = threading.Thread(target=stop.wait)
    thread.start()
    now = process.read_numbers()
    stop.set()
    thread.join()
    for descriptor in descriptors:
        os.close(descriptor)
    assert (now.open_files - before.open_files, now.threads - before.threads) == (3, 1)
