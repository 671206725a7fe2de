# SPDX-License-Identifier: Apache-2.0
"""``make bench``: measures, prints a table, writes bench-result.json. Judges nothing, shows targets beside.

The fake kubelet runs in this process, the daemon in its own, and so does the client of Allocate; a machine
with two cores has room for them. The fake kubelet is Python too, so its share of the other latencies is the
larger one. Arguments are names of cases (``make bench ARGS="start allocate"``); without any, all run.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

from nodeagent.base.terminal import table
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.bench import (
    allocating,
    crowding,
    events,
    idling,
    listing,
    restarting,
    scanning,
    siblings,
    splitting,
    starting,
)
from tests.bench.daemon import simulated
from tests.bench.figures import Figure

Case = Callable[[], Awaitable[list[Figure]]]


async def _large(figures: Callable[[SimulatedHost, FakeKubelet], Awaitable[list[Figure]]]) -> list[Figure]:
    """The figures of a case on a host with 60 resources and 1,000 devices."""
    with simulated(listing.DEVICES, listing.RESOURCES) as host:
        async with FakeKubelet(host.path("/")) as kubelet:
            return await figures(host, kubelet)


CASES: dict[str, Case] = {
    "start": functools.partial(_large, starting.figures),
    "allocate": functools.partial(_large, allocating.figures),
    "siblings": siblings.figures,
    "event": functools.partial(_large, events.figures),
    "restart": functools.partial(_large, restarting.figures),
    "crowd": crowding.figures,
    "idle": idling.figures,
    "scan": scanning.figures,
    "split": splitting.figures,
}


async def measure(names: Sequence[str]) -> list[Figure]:
    """The figures of these cases."""
    return [figure for name in names for figure in await CASES[name]()]


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="measure speed and size")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    names = parser.parse_args().cases or tuple(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    figures = anyio.run(measure, names)
    print(
        table(
            ("FIGURE", "VALUE", "UNIT", "TARGET"),
            [(f.name, f"{f.value:.2f}", f.unit, f.target) for f in figures],
        )
    )
    result: list[dict[str, Any]] = [figure._asdict() for figure in figures]
    Path("bench-result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
