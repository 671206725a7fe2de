# SPDX-License-Identifier: Apache-2.0
"""``make fuzz``: rounds of damaged inputs, one target after the other, until the time is over or all were.

The seed is printed first. What was not borne is told with the one command that does it again, alone and
shrunk, and ends in exit code 1. What is listed in ``known`` is told and counted, but is no failure.
"""

from __future__ import annotations

import argparse
import logging
import math
import secrets
import sys
import time
from collections import Counter
from collections.abc import Sequence

from nodeagent.base import log
from tests.fuzz import targets
from tests.fuzz.running import ROUND, Failure, Target, round_of

NIGHTLY = 300.0  # seconds
ENOUGH = 3  # failures of a target, after which it is left out


def main(arguments: list[str]) -> int:
    """Run it and tell; the exit code."""
    everything = {target.name: target for target in targets.everything()}
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="damaged inputs")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(everything))
    parser.add_argument("--seconds", type=float, default=NIGHTLY, help=f"how long ({NIGHTLY:.0f})")
    parser.add_argument("--rounds", type=int, default=None, help="of each target, however long that takes")
    parser.add_argument("--seed", type=int, default=None, help="of all inputs; printed in any case")
    parser.add_argument("--round", type=int, default=None, help="only this round, and shrink what fails")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.targets) - everything.keys():
        parser.error(f"there is no target {unknown.pop()}; there are {', '.join(everything)}")
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", flush=True)
    logging.getLogger(log.LOGGER).propagate = False  # what is said of damage is judged, not shown
    logging.getLogger(log.LOGGER).addHandler(logging.NullHandler())
    wanted = [everything[name] for name in chosen.targets or everything]
    met: Counter[str] = Counter()
    if chosen.round is None:
        seconds = chosen.seconds if chosen.rounds is None else math.inf
        failures = _rounds(wanted, seed, (seconds, chosen.rounds or math.inf), met)
    else:
        found = [round_of(target, seed, chosen.round, met, shrink=True) for target in wanted]
        failures = [failure for failure in found if failure is not None]
    _tell(failures, seed, met)
    return bool(failures)


def _rounds(
    wanted: Sequence[Target], seed: int, limits: tuple[float, float], met: Counter[str]
) -> list[Failure]:
    """All that failed until the seconds were over, or each target had its rounds."""
    seconds, most = limits
    failures: list[Failure] = []
    spent: dict[str, list[float]] = {target.name: [] for target in wanted}
    failed: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        left = [each for each in wanted if failed[each.name] < ENOUGH and len(spent[each.name]) < most]
        if not left:
            break
        target = min(left, key=lambda each: sum(spent[each.name]))  # all have the same time
        began, times = time.monotonic(), spent[target.name]
        failure = round_of(target, seed, len(times), met)
        times.append(time.monotonic() - began)
        if failure is not None:
            failed[target.name] += 1
            failures.append(failure)
    for name, times in spent.items():
        print(f"{name:14} {len(times) * ROUND:6} inputs, {sum(times):.0f} s")
    return failures


def _tell(failures: Sequence[Failure], seed: int, met: Counter[str]) -> None:
    """Tell of failures, and of what is known."""
    for failure in failures:
        print(f"\n{failure.target}: {failure.text}\n  input {failure.shown}")
        print(f"  again: python -m tests.fuzz {failure.target} --seed {seed} --round {failure.number}")
    for why, times in met.items():
        print(f"known, {times} times: {why}")
    print(f"{len(failures)} not borne")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
