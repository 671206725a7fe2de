# SPDX-License-Identifier: Apache-2.0
"""The figures that a run has measured, and the limits that they must keep.

Size is compared between two moments of one life of the daemon, at which the same is listed and nobody has
anything: whatever lies between them must have left nothing behind. The slope is that of the straight line
through all that was measured between. Threads stand for tasks: those of the event loop show in no file of
/proc, but each stream, server or call that is left behind has a descriptor or memory of its own.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.blackbox.harness import Usage

GROWTH = 4096  # KiB between two equal moments; allocators give back late
MORE = 2  # descriptors or threads: a call may be under way


@dataclass
class Figures:
    """All that is told at the end. Times in seconds, RSS in KiB."""

    kills: int = 0
    lives: Counter[str] = field(default_factory=Counter)
    restarts: Counter[str] = field(default_factory=Counter)
    shortages: Counter[str] = field(default_factory=Counter)
    returns: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    begin: Usage | None = None
    end: Usage | None = None
    sizes: list[int] = field(default_factory=list)  # after each restart of the measured life

    def faults(self) -> list[str]:
        """What has grown beyond its bound."""
        if self.begin is None or self.end is None:
            return ["no life of the daemon was measured"]
        grown = {
            "memory": (self.begin.rss, self.end.rss, GROWTH),
            "descriptors": (self.begin.fds, self.end.fds, MORE),
            "threads": (self.begin.threads, self.end.threads, MORE),
        }
        return [f"{what}: {a} became {b}" for what, (a, b, bound) in grown.items() if b - a > bound]

    def lines(self) -> list[str]:
        """The table at the end."""
        total = sum(self.restarts.values())
        lines = [f"kubelet restarts    {total}: {_told(self.restarts)}", f"daemon kills        {self.kills}"]
        lines.append(f"lives before        {_told(self.lives)}")
        lines.append(f"shortages           {_told(self.shortages)}")
        for kind, times in sorted(self.returns.items()):
            middle = f"median {statistics.median(times):.2f} s"
            lines.append(f"all back after      {kind}: {middle}, slowest {max(times):.2f} s")
        if self.begin is not None and self.end is not None:
            lines += self._sizes(self.begin, self.end)
        return lines

    def _sizes(self, begin: Usage, end: Usage) -> list[str]:
        half = len(self.sizes) // 2
        slopes = f"{_slope(self.sizes[:half]):+.0f}, then {_slope(self.sizes[half:]):+.0f}"
        return [
            f"RSS                 {begin.rss / 1024:.1f} MiB at the begin, {end.rss / 1024:.1f} at the end",
            f"RSS slope           {slopes} KiB for 100 restarts, in two halves of {len(self.sizes)}",
            f"descriptors         {begin.fds} at the begin, {end.fds} at the end",
            f"threads             {begin.threads} at the begin, {end.threads} at the end",
        ]


def _slope(sizes: list[int]) -> float:
    """Of the straight line through sizes, for 100 restarts; 0 for fewer than three."""
    if len(sizes) < 3:
        return 0.0
    return statistics.linear_regression(range(len(sizes)), [float(size) for size in sizes]).slope * 100


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(counts.items())) or "none"
