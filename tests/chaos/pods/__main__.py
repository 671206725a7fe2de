# SPDX-License-Identifier: Apache-2.0
"""Pods come and go while the kubelet, the daemon and the devices fail. The daemon is a real process.

The seed is printed first. It decides all choices of the first run; seed + 1 decides those of the second run.
The exit code is 1 if an IOMMU group or a device has two owners, or if a free device is not Healthy or cannot
be allocated after the faults. Then the failure, the timeline of the run and the command that repeats it are
printed. USB devices need root.
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

from tests.chaos.pods import run
from tests.chaos.pods.board import MODES, Modes
from tests.chaos.pods.run import Report

RUNS, SECONDS = 8, 20.0
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
    """Run all and return the exit code."""
    chosen = _parser().parse_args(arguments)
    first = secrets.randbits(32) if chosen.seed is None else chosen.seed
    print(f"seed                {first}", flush=True)
    logging.getLogger("grpclib").setLevel(logging.CRITICAL)  # of the fake kubelet, whose peers are killed
    mixes = itertools.cycle(_mixes() if chosen.mode is None else (chosen.mode,))
    for seed, modes in zip(range(first, first + chosen.runs), mixes, strict=False):
        began = time.monotonic()
        report = anyio.run(run.run_faults, seed, modes, chosen.seconds)
        print(_line(seed, modes, report, time.monotonic() - began), flush=True)
        if report.broken or chosen.timeline:
            print("\n".join(report.timeline), flush=True)
        if report.broken:
            options = f"--seed {seed} --runs 1 --mode {','.join(modes)} --seconds {chosen.seconds:g}"
            print(f"chaos.pods: {report.broken}", file=sys.stderr)
            print(f"to repeat: python -m tests.chaos.pods {options}", file=sys.stderr)
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.pods", description="faults of a node while pods come and go"
    )
    parser.add_argument("--runs", type=int, default=RUNS, help=f"number of runs ({RUNS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of faults in each run ({SECONDS:g})")
    parser.add_argument("--seed", type=int, default=None, help="seed of the first run (random)")
    parser.add_argument("--timeline", action="store_true", help="print the timeline of each run")
    parser.add_argument(
        "--mode",
        type=_modes,
        default=None,
        help=f"one or more of {','.join(MODES)} (another mix in each run)",
    )
    return parser


def _mixes() -> list[Modes]:
    """Return the mixes without USB unless the user is root, who alone can create USB device nodes."""
    return [[mode for mode in mix if mode != "usb" or os.geteuid() == 0] for mix in MIXES]


def _modes(text: str) -> Modes:
    """Parse the value of --mode. :raises argparse.ArgumentTypeError: if it is invalid."""
    modes = tuple(text.split(","))
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise argparse.ArgumentTypeError(f"{unknown} is none of {', '.join(MODES)}")
    if {"group", "bundle"} <= set(modes):
        raise argparse.ArgumentTypeError("isolation is by group or by bundle, not both")
    return modes


def _line(seed: int, modes: Modes, report: Report, took: float) -> str:
    quiet = " and ".join(f"{seconds:.1f}" for seconds in report.rest)
    result = "FAILED" if report.broken else f"all free devices allocatable after {quiet} s"
    counts = f"{report.machines} VMs, {report.refused} refused, {sum(report.done.values())} faults"
    return f"{seed:<20}{','.join(modes):22}{counts}, {result}, {took:.0f} s in all"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
