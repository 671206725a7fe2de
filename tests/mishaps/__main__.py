# SPDX-License-Identifier: Apache-2.0
"""``make mishaps``: a daemon killed at each write, and each write refused, of 64 functions in 16 groups.

There are 768 moments to be killed in (each write there and back, before and after its effect), and 1,088
writes to fail. The seed is printed first: it orders them, and says whether the rules stay after a kill. Exit
code 1, with what was broken and the seed, if a group is torn afterwards or the status says otherwise.
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
from tests.mishaps import points, story
from tests.mishaps.points import BACK, FORTH
from tests.mishaps.story import BEFORE, WISHED, Story

Tell = Callable[[str], None]


def main(arguments: list[str]) -> int:
    """Run it and tell; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mishaps", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=None, help="how many (all)")
    parser.add_argument("--failures", type=int, default=None, help="how many lives with failing writes (all)")
    parser.add_argument("--seed", type=int, default=None, help="of the choices; printed in any case")
    chosen = parser.parse_args(arguments)
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    print(f"seed                {seed}", flush=True)
    logging.getLogger("grpclib").setLevel(logging.CRITICAL)  # of the stand-in, whose peers are killed
    try:
        anyio.run(_all, random.Random(seed), chosen.kills, chosen.failures)
    except (AssertionError, ExceptionGroup) as error:
        print(f"make mishaps: {_innermost(error)}\nthe same again: --seed {seed}", file=sys.stderr)
        return 1
    return 0


async def _all(rng: random.Random, kills: int | None, failures: int | None) -> None:
    await _on_a_node("killed", partial(_killed, rng=rng, count=kills))
    await _on_a_node("failed", partial(_failed, count=failures))


async def _on_a_node(what: str, happen: Callable[[Story], Awaitable[str]]) -> None:
    began = time.monotonic()
    with places.in_memory("nodeagent-mishaps-") as directory:
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
