# SPDX-License-Identifier: Apache-2.0
"""``make soak``: hundreds of kubelet restarts under a daemon that is a process, and what they cost.

The seed is printed first and makes all choices; what else goes on at the same time is the machine's. Exit
code 1, with what was broken and the seed, if an invariant does not hold: a resource that is not back in time,
a device that was given to two, memory or descriptors that grow. With root disks are filled, too.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time

import anyio

from tests import places
from tests.soak.running import Soak
from tests.soak.world import Broken

NIGHTLY = 600


def main(arguments: list[str]) -> int:
    """Run it and tell; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="kubelet restarts in a row")
    parser.add_argument("--restarts", type=int, default=NIGHTLY, help=f"how many ({NIGHTLY})")
    parser.add_argument("--seed", type=int, default=None, help="of the choices; printed in any case")
    chosen = parser.parse_args(arguments)
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    print(f"seed                {seed}", flush=True)
    logging.getLogger("grpclib").setLevel(logging.CRITICAL)  # of the stand-in, whose peers are killed
    with places.in_memory("nodeagent-soak-") as directory:
        return _run(Soak(directory, seed, chosen.restarts), seed, chosen.restarts)


def _run(soak: Soak, seed: int, wanted: int) -> int:
    began, broken = time.monotonic(), ""
    try:
        anyio.run(soak.run)
    except (Broken, ExceptionGroup) as error:
        broken = _innermost(error)
    print("\n".join(soak.figures.lines()))
    happened = ", ".join(f"{number} {what}" for what, number in sorted(soak.world.happened.items()))
    print(f"meanwhile           {happened}")
    print(f"pods refused        {sum(soak.world.refusals.values())}")
    for text, number in soak.world.refusals.most_common(5):
        print(f"                    {number} x {text}")
    print(f"took                {time.monotonic() - began:.0f} s")
    if broken:
        again = f"python -m tests.soak --seed {seed} --restarts {wanted}"
        print(f"make soak: {broken}\nthe same choices again: {again}", file=sys.stderr)
    return bool(broken)


def _innermost(error: Exception) -> str:
    """What has ended the task groups; anything but a Broken is told with its class."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, Broken) else repr(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
