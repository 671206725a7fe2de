# SPDX-License-Identifier: Apache-2.0
"""What programs cost, as proc(5) tells, and what an API server was asked, as its own metrics tell.

The API server counts a stream of events in ``apiserver_request_total`` when it ends, and until then in
``apiserver_longrunning_requests``.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.e2e.api import Api
from tests.e2e.processes import Process

_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Requests = Counter[tuple[str, str, str]]
"""How many, by verb, resource and status."""


class Usage(NamedTuple):
    """CPU seconds so far, and resident memory in MiB."""

    cpu: float
    memory: float

    @classmethod
    def of(cls, process: Process) -> Usage:
        """Of a process that runs."""
        proc = Path("/proc", str(process.pid))
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
        ticks = int(fields[11]) + int(fields[12])
        return cls(ticks / _TICKS, int(status["VmRSS"].split()[0]) / 1024)


@contextmanager
def measured(what: str, programs: Callable[[], Mapping[str, Process]]) -> Iterator[dict[str, Usage]]:
    """What each program has used in the block, and its memory at the end; printed, with ``what`` it was.

    The dict is empty before the end. A program that starts in the block has used nothing before.
    """
    used: dict[str, Usage] = {}
    before, began = _usages(programs()), time.monotonic()
    yield used
    seconds = time.monotonic() - began
    for name, now in _usages(programs()).items():
        used[name] = now._replace(cpu=now.cpu - before.get(name, Usage(0.0, 0.0)).cpu)
    parts = [f"{name} {each.cpu:.2f} s CPU, {each.memory:.0f} MiB" for name, each in used.items()]
    print(f"\n{what}, {seconds:.1f} s: {'; '.join(parts)}", end="")


def _usages(programs: Mapping[str, Process]) -> dict[str, Usage]:
    return {name: Usage.of(process) for name, process in programs.items()}


class Counters(NamedTuple):
    """``requests`` that have ended, and ``streams`` that are open by resource."""

    requests: Requests
    streams: Counter[str]

    @classmethod
    def of(cls, api: Api) -> Counters:
        """As they are now."""
        requests: Requests = Counter()
        streams: Counter[str] = Counter()
        for name, labels, value in _samples(api.ask("GET", "/metrics")):
            if name == "apiserver_request_total":
                requests[labels["verb"], labels["resource"], labels["code"]] += value
            elif name == "apiserver_longrunning_requests" and labels["verb"] == "WATCH":
                streams[labels["resource"]] += value
        return cls(requests, streams)

    def since(self, before: Counters) -> Counters:
        """What has come since, without what has gone."""
        return Counters(self.requests - before.requests, self.streams - before.streams)


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], int]]:
    wanted = "\n".join(line for line in text.splitlines() if line.startswith("apiserver_"))
    for name, labels, value in _SAMPLE.findall(wanted):
        yield name, dict(_LABEL.findall(labels)), int(float(value))
