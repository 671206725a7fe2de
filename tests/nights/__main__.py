# SPDX-License-Identifier: Apache-2.0
"""``make nights``: what may befall a node in a bad night, under a daemon that is a process.

The seed is printed first: it makes all choices of the first night, the number after it those of the second.
Exit code 1, with what was broken, the timeline of that night and the command that repeats its choices, if a
group or a device has two owners, or at rest something that is free is not told or not given. With root there
are USB devices, too.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import secrets
import sys
import time

import anyio

from tests.nights import night
from tests.nights.board import MODES, Modes
from tests.nights.night import Report

NIGHTLY, SECONDS = 8, 20.0
MIXES: tuple[Modes, ...] = (
    ("group",),
    ("group", "usb"),
    ("bundle",),
    ("group", "cdi"),
    ("group", "iommufd", "usb"),
    ("bundle", "cdi", "usb"),
    ("group", "cdi", "iommufd"),
    ("bundle", "iommufd", "usb"),
)


def main(arguments: list[str]) -> int:
    """Run them and tell; the exit code."""
    chosen = _parser().parse_args(arguments)
    first = secrets.randbits(32) if chosen.seed is None else chosen.seed
    print(f"seed                {first}", flush=True)
    logging.getLogger("grpclib").setLevel(logging.CRITICAL)  # of the stand-in, whose peers are killed
    mixes = itertools.cycle(_mixes() if chosen.mode is None else (chosen.mode,))
    for seed, modes in zip(range(first, first + chosen.runs), mixes, strict=False):
        began = time.monotonic()
        report = anyio.run(night.spent, seed, modes, chosen.seconds)
        print(_line(seed, modes, report, time.monotonic() - began), flush=True)
        if report.broken or chosen.timeline:
            print("\n".join(report.timeline), flush=True)
        if report.broken:
            again = f"--seed {seed} --runs 1 --mode {','.join(modes)} --seconds {chosen.seconds:g}"
            print(f"make nights: {report.broken}\nthe same choices again: {again}", file=sys.stderr)
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.nights", description="what may befall a node in a bad night"
    )
    parser.add_argument("--runs", type=int, default=NIGHTLY, help=f"how many nights ({NIGHTLY})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of trouble in each ({SECONDS:g})")
    parser.add_argument("--seed", type=int, default=None, help="of the choices; printed in any case")
    parser.add_argument("--timeline", action="store_true", help="tell all that happened in any case")
    parser.add_argument(
        "--mode",
        type=_modes,
        default=None,
        help=f"of {', '.join(MODES)}, several with commas (each night another mix)",
    )
    return parser


def _mixes() -> list[Modes]:
    """What this user may: the nodes of USB devices are root's to make."""
    return [[mode for mode in mix if mode != "usb" or os.geteuid() == 0] for mix in MIXES]


def _modes(text: str) -> Modes:
    """:raises argparse.ArgumentTypeError: if that makes no sense."""
    modes = tuple(text.split(","))
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise argparse.ArgumentTypeError(f"{unknown} is none of {', '.join(MODES)}")
    if {"group", "bundle"} <= set(modes):
        raise argparse.ArgumentTypeError("isolation is by group or by bundle, not both")
    return modes


def _line(seed: int, modes: Modes, report: Report, took: float) -> str:
    quiet = " and ".join(f"{seconds:.1f}" for seconds in report.rest)
    told = "BROKEN" if report.broken else f"rest after {quiet} s"
    counts = f"{report.machines} VMs, {report.refused} refused, {sum(report.done.values())} troubles"
    return f"{seed:<20}{','.join(modes):22}{counts}, {told}, {took:.0f} s in all"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
