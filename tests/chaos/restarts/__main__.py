# SPDX-License-Identifier: Apache-2.0
"""Hundreds of kubelet restarts under one daemon, which is a real process; prints figures at the end.

The seed is printed first and decides all choices; the timing is not repeatable. The exit code is 1 if a
resource is not registered again in time, a device is allocated to two pods, or memory or file descriptors
grow. Then the failure and the command that repeats the choices are printed. Full disks need root.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time

import anyio

from tests import places
from tests.chaos.restarts.run import RestartRun
from tests.chaos.restarts.world import Broken

RESTARTS = 600


def main(arguments: list[str]) -> int:
    """Run all and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.restarts", description="kubelet restarts in a row"
    )
    parser.add_argument("--restarts", type=int, default=RESTARTS, help=f"number of restarts ({RESTARTS})")
    parser.add_argument("--seed", type=int, default=None, help="seed of all choices (random)")
    chosen = parser.parse_args(arguments)
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    print(f"seed                {seed}", flush=True)
    logging.getLogger("grpclib").setLevel(logging.CRITICAL)  # of the fake kubelet, whose peers are killed
    with places.in_memory("chaos-restarts-") as directory:
        return _run(RestartRun(directory, seed, chosen.restarts), seed, chosen.restarts)


def _run(run: RestartRun, seed: int, restarts: int) -> int:
    began, broken = time.monotonic(), ""
    try:
        anyio.run(run.run)
    except (Broken, ExceptionGroup) as error:
        broken = _innermost(error)
    print("\n".join(run.figures.lines()))
    happened = ", ".join(f"{number} {what}" for what, number in sorted(run.world.happened.items()))
    print(f"meanwhile           {happened}")
    print(f"pods refused        {sum(run.world.refusals.values())}")
    for text, number in run.world.refusals.most_common(5):
        print(f"                    {number} x {text}")
    print(f"took                {time.monotonic() - began:.0f} s")
    if broken:
        print(f"chaos.restarts: {broken}", file=sys.stderr)
        print(
            f"to repeat: python -m tests.chaos.restarts --seed {seed} --restarts {restarts}", file=sys.stderr
        )
    return bool(broken)


def _innermost(error: Exception) -> str:
    """Return the error that ended the task groups, with its class unless it is a violated rule."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, Broken) else repr(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
