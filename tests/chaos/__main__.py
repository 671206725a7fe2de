# SPDX-License-Identifier: Apache-2.0
"""``make chaos``: runs the parts pods, restarts and crashes one after the other, with the same seed.

The seed is printed first. Before each part, the command is printed that runs this part alone. A failed part
does not stop the next one. The exit code is 1 if any part failed.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

QUICK: Mapping[str, Sequence[str]] = {  # options of each part for a run of about 4 minutes in all
    "pods": ("--runs", "3"),
    "restarts": ("--restarts", "40"),
    "crashes": ("--kills", "50", "--failures", "6"),
}
LIMIT = 3600.0  # seconds of one part; on a loaded machine the longest part takes half an hour
GRACE = 20.0  # seconds in which an interrupted part stops its daemons and unmounts its file systems


def main(arguments: list[str]) -> int:
    """Run all parts and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=f"fault tests: {', '.join(QUICK)}"
    )
    parser.add_argument("--seed", type=int, default=None, help="seed of all choices (random)")
    parser.add_argument("--quick", action="store_true", help="about 4 minutes instead of half an hour")
    chosen = parser.parse_args(arguments)
    seed = secrets.randbits(32) if chosen.seed is None else chosen.seed
    print(f"seed                {seed}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell has its background processes ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    results = [_run_part(part, seed, options if chosen.quick else ()) for part, options in QUICK.items()]
    print()
    for part, (error, seconds) in zip(QUICK, results, strict=True):
        print(f"{part:20}{error or 'passed'}, {seconds:.0f} s", flush=True)
    return int(any(error for error, _ in results))


def _run_part(part: str, seed: int, options: Sequence[str]) -> tuple[str, float]:
    """Run one part in a process of its own; return its error, empty if it passed, and its seconds."""
    command = ["-m", f"tests.chaos.{part}", "--seed", str(seed), *options]
    print(f"\npython {' '.join(command)}", flush=True)
    began = time.monotonic()
    # In a session of its own it does not get the terminal's Ctrl-C in addition to the signal of _stop.
    process = subprocess.Popen([sys.executable, *command], start_new_session=True)
    try:
        code = process.wait(LIMIT)
        error = f"FAILED with exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        error = "FAILED, stopped at its time limit"
    finally:
        _stop(process)
    return error, time.monotonic() - began


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a part that still runs; kill it if it does not end."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
