# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed at each write, and each write fails, while 64 functions in 16 groups are bound.

There are 768 points to kill the daemon at (each write of binding and release, before and after its effect)
and 1,088 writes that fail. The seed is printed first. It decides the order of the kills, and whether the
rules are changed back after a kill. The exit code is 1 if a group is partly bound afterwards, or if the
status of the daemon is wrong. Then the failure and the command that repeats the choices are printed.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from tests import places
from tests.blackbox.harness import Node
from tests.chaos.crashes import points, story
from tests.chaos.crashes.points import BACK, FORTH
from tests.chaos.crashes.story import BEFORE, WISHED, Story


def main(arguments: list[str]) -> int:
    """Run all and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.crashes", description="kills and failed writes while functions are bound"
    )
    parser.add_argument("--kills", type=int, default=None, help="number of kills (all 768)")
    parser.add_argument("--failures", type=int, default=None, help="number of failing daemons (all 96)")
    parser.add_argument("--seed", type=int, default=None, help="seed of all choices (random)")
    chosen = parser.parse_args(arguments)
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    print(f"seed                {seed}", flush=True)
    logging.getLogger("grpclib").setLevel(logging.CRITICAL)  # of the fake kubelet, whose peers are killed
    try:
        anyio.run(_all, random.Random(seed), chosen.kills, chosen.failures)
    except (AssertionError, ExceptionGroup) as error:
        print(f"chaos.crashes: {_innermost(error)}", file=sys.stderr)
        print(f"to repeat: python -m tests.chaos.crashes {_options(chosen, seed)}", file=sys.stderr)
        return 1
    return 0


def _options(chosen: argparse.Namespace, seed: int) -> str:
    """Return the options of this run with its seed."""
    counts = {"kills": chosen.kills, "failures": chosen.failures}
    given = (f" --{name} {count}" for name, count in counts.items() if count is not None)
    return f"--seed {seed}" + "".join(given)


async def _all(rng: random.Random, kills: int | None, failures: int | None) -> None:
    await _on_a_node("killed", partial(_killed, rng=rng, count=kills))
    await _on_a_node("failed", partial(_failed, count=failures))


async def _on_a_node(what: str, happen: Callable[[Story], Awaitable[str]]) -> None:
    began = time.monotonic()
    with places.in_memory("chaos-crashes-") as directory:
        async with story.told(Node(directory)) as told:
            done = await happen(told)
            print(f"{what:20}{done}, {told.lives} lives, {time.monotonic() - began:.0f} s", flush=True)


async def _killed(told: Story, rng: random.Random, count: int | None) -> str:
    number = 0
    for point, kept in itertools.islice(points.shuffled(points.every(told.groups), rng), count):
        try:
            await told.killed_at(point, kept=kept)
        except AssertionError as error:
            raise AssertionError(f"{point}, rules {'kept' if kept else 'changed back'}: {error}") from error
        number += 1
    return f"{number} times, at another write or moment each"


async def _failed(told: Story, count: int | None) -> str:
    ways = [(each, WISHED) for each in points.failings(told.groups, FORTH)]
    ways += [(each, BEFORE) for each in points.failings(told.groups, BACK)]
    number = 0
    for failing, goal in ways[:count]:
        try:
            await told.failed_at(failing, goal)
        except AssertionError as error:
            raise AssertionError(f"{failing.fault} {[*failing.places.values()]}: {error}") from error
        number += len(failing.places)
    return f"{number} writes"


def _innermost(error: Exception) -> str:
    """What has ended the task groups; anything but a broken promise is told with its class."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, AssertionError) else repr(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
