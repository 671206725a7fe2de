# SPDX-License-Identifier: Apache-2.0
"""A daemon under measurement: a real process on a simulated host, and what /proc says of it."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from nodeagent.sim.host import SimulatedHost
from tests import places
from tests.sim import hosts


@contextlib.contextmanager
def simulated(functions: int, resources: int) -> Iterator[SimulatedHost]:
    """A host of single-function groups in memory-backed storage, removed at the end."""
    with places.in_memory("nodeagent-bench-") as directory:
        host = hosts.many(directory, functions, resources)
        yield host


class Daemon:
    """The process, from exec on."""

    def __init__(self, root: str, *, module: tuple[str, ...] = ("nodeagent",)) -> None:
        """``module``: what to run in its place, with arguments that come before the daemon's."""
        command = [sys.executable, "-m", *module, "--root", root, "run", "--log-level", "warning"]
        command += ["--discovery-naming", "id"]  # one name per device id: as many resources as ids
        self.started = time.monotonic()
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere)
        atexit.register(self._process.kill)  # a measurement that fails leaves none behind

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self) -> float:
        """End it; return the seconds that took.

        :raises RuntimeError: if it did not end with exit code 0.
        """
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(10)
        if code != 0:
            raise RuntimeError(f"the daemon ended with exit code {code}")
        return time.monotonic() - began

    def memory(self) -> float:
        """Resident memory in MiB."""
        return self._status("VmRSS") / 1024

    def ticks(self) -> int:
        """CPU ticks (10 ms) used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def runtime(self) -> float:
        """Milliseconds for which its threads have run so far."""
        tasks = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(map(_runtime, tasks)) / 1e6

    def reads(self) -> int:
        """Read system calls so far."""
        lines = Path(f"/proc/{self._process.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("syscr:"))

    def switches(self) -> int:
        """Context switches of all threads so far."""
        tasks = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(
            int(line.split()[1])
            for task in tasks
            for line in (task / "status").read_text().splitlines()
            if "ctxt_switches" in line
        )

    def files(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def _status(self, key: str) -> int:
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{key}:"))


def _runtime(task: Path) -> int:
    """The processor time of a thread in nanoseconds; 0 if it has ended since it was listed."""
    try:
        return int((task / "schedstat").read_text().split()[0])
    except FileNotFoundError:
        return 0
