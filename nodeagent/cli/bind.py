# SPDX-License-Identifier: Apache-2.0
"""``nodeagent bind``: binds functions to a VFIO driver, now or at the next boot. ``release`` uses it, too.

Only one process changes the host: a running daemon, which gets the request on its socket, or else this
command, which takes the daemon's lock. If a daemon has the lock but does not answer, it is starting or
ending, and this command waits.

This command itself writes the files for the next boot, because the daemon's sandbox may not write them. To
check the guards, this command scans the host and uses the settings in force.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import anyio

from nodeagent.agent import oneshot
from nodeagent.base import log, supervise
from nodeagent.base.errors import AlreadyRunning, ConfigError, NodeagentError
from nodeagent.base.timeouts import Timeouts
from nodeagent.cli import args, daemon_client, output
from nodeagent.kernel import boot_files
from nodeagent.kernel.root import Root
from nodeagent.model.change import Answer, BindAction, BootFile, BootFiles, Outcome, Request, Result
from nodeagent.model.ids import VFIO_PCI, vfio_driver
from nodeagent.policy import naming
from nodeagent.policy.change import at_boot, manual_requests

if TYPE_CHECKING:
    from nodeagent.model.snapshot import Snapshot

SHOWN = 4  # the number of functions that are named; others are only counted
_WELL = (Outcome.DONE, Outcome.PLANNED, Outcome.NOTHING)
_ELSEWHERE = "run this command where the daemon runs: as root on the host, or in its pod with kubectl exec"
_BY_DAEMON = "nothing: the daemon continues when the kernel permits; see nodeagent status"
_BY_HAND = "repeat the command when the device is free, or start the daemon, which completes the change"
_NO_TOOL = "rebuild the initramfs, if this host has one, with these files and vfio-pci"


class OutcomeAnswer(NamedTuple):
    """The outcome of a manual request for each IOMMU group. ``files``: the changed files for the next boot.

    ``then``: the command that rebuilds the initramfs with these files; nodeagent does not run it.
    """

    results: tuple[Result, ...]
    files: tuple[BootFile, ...] = ()
    then: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--driver``, ``--at-boot`` and the names."""
    parser.add_argument("--driver", metavar="NAME", default=VFIO_PCI, help="use this variant of vfio-pci")
    parser.add_argument(
        "--at-boot", action="store_true", help="write files for the next boot; bind nothing now"
    )
    add_names(parser)


def add_names(parser: argparse.ArgumentParser) -> None:
    """Add the names, and ``--dry-run``."""
    parser.add_argument(
        "names", metavar="NAME", nargs="+", help="PCI address, pattern such as 3b:*, or vendor:device"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would change; change nothing")
    args.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Bind functions to a VFIO driver."""
    if not vfio_driver(options.driver):
        hint = f"give {VFIO_PCI}, or a variant of it, such as mlx5_vfio_pci"
        raise ConfigError(f'--driver: "{options.driver}" is no VFIO driver', hint)
    request = parse_request(options, BindAction.BIND, options.driver)
    return _bind_at_boot(options, request) if options.at_boot else carry_out(options, request, BootFiles())


def parse_request(options: argparse.Namespace, asking: BindAction, driver: str) -> Request:
    """Return the request of these options. :raises ConfigError: if a name is invalid."""
    for name in options.names:
        manual_requests.parse_name(name)
    return Request(asking, tuple(options.names), driver, options.dry_run)


# Now


def carry_out(options: argparse.Namespace, request: Request, files: BootFiles) -> int:
    """Carry out a request, and print the outcome; ``files``: files that were changed for the next boot."""
    answer, first_line = _obtain_answer(options, request)
    if answer.error:
        raise NodeagentError(answer.error, answer.hint)
    late = _BY_HAND if first_line else _BY_DAEMON
    outcome = OutcomeAnswer(answer.results, files.files, files.then)

    def text() -> str:
        return _join(files_text(files, dry_run=request.dry_run), results_text(answer.results, late))

    output.emit(options, "Outcome", outcome, text, first_line)
    return output.FINE if all(each.outcome in _WELL for each in answer.results) else output.WRONG


def _obtain_answer(options: argparse.Namespace, request: Request) -> tuple[Answer, str]:
    """Return the answer, and a line to print first.

    :raises NodeagentError: if neither the daemon nor this process can carry out the request.
    """
    root, path = args.find_root(options), daemon_client.socket_path(options)
    timeouts: Timeouts = options.timeouts
    until = time.monotonic() + timeouts.daemon_start
    while True:
        try:
            return daemon_client.send_request(path, request, timeouts.daemon_answer), ""
        except ConnectionError as error:
            absent = str(error)
        try:
            return _carry_out_here(options, root, request), f"{absent}: this command makes the change itself"
        except AlreadyRunning as error:
            if time.monotonic() >= until:
                what = f"{error.what.partition(';')[0]}, and the daemon does not answer at {path}"
                raise NodeagentError(what, _ELSEWHERE) from error
        time.sleep(timeouts.daemon_start_poll)


def _carry_out_here(options: argparse.Namespace, root: Root, request: Request) -> Answer:
    """Carry out the request in this process.

    :raises AlreadyRunning: if a daemon runs after all.
    :raises ConfigError: if this user is not root.
    """
    _check_root(root, request)
    settings = args.load_settings(options)
    from nodeagent.agent.changing import requests  # here: not needed where a daemon answers

    logging.getLogger(log.LOGGER).addHandler(logging.NullHandler())  # the answer says everything

    async def main() -> Answer:
        return await requests.carry_out_alone(root, settings, options.timeouts, request)

    try:
        return anyio.run(main)
    except BaseExceptionGroup as group:
        if (one := supervise.only_error(group, NodeagentError)) is None:
            raise
        raise one from group


def _check_root(root: Root, request: Request) -> None:
    """:raises ConfigError: if this user may not change this host."""
    if root.is_host and os.geteuid() != 0 and not request.dry_run:
        raise ConfigError(f"nodeagent {request.asking} must be root", "run it with sudo")


# At the next boot


def _bind_at_boot(options: argparse.Namespace, request: Request) -> int:
    """Write the files that bind functions at the next boot. :raises NodeagentError: if that fails."""
    root = args.find_root(options)
    _check_root(root, request)
    snapshot, first_line = _scan(options, root)
    found = at_boot.plan(request, snapshot, boot_files.read(root))
    change = boot_files.changes(root, found.entries)
    if not request.dry_run:
        boot_files.put(root, change)
    done = Outcome.PLANNED if request.dry_run else Outcome.DONE
    results = tuple(
        each._replace(outcome=done) if each.outcome is Outcome.PLANNED else each for each in found.results
    )

    def text() -> str:
        return _join(results_text(results, ""), files_text(change, dry_run=request.dry_run))

    output.emit(options, "Outcome", OutcomeAnswer(results, change.files, change.then), text, first_line)
    refused = any(each.outcome is Outcome.REFUSED for each in results)
    return output.WRONG if refused else output.FINE


def remove_from_boot(options: argparse.Namespace, request: Request) -> tuple[Request, BootFiles]:
    """Remove the named functions from the files for the next boot.

    Return the changed files, and the request with the functions that were bound by these files at this boot.
    """
    root = args.find_root(options)
    known = boot_files.read(root)
    if not known:
        return request, BootFiles()
    _check_root(root, request)
    snapshot, _ = _scan(options, root)
    kept = at_boot.remove_entries(request, snapshot, known)
    change = boot_files.changes(root, kept)
    if not request.dry_run:
        boot_files.put(root, change)
    removed = tuple(each.address for each in known if each not in kept)
    return request._replace(at_boot=removed), change


def _scan(options: argparse.Namespace, root: Root) -> tuple[Snapshot, str]:
    """Scan the host now, with the settings in force; return the Snapshot and a line to print first."""
    basis, first_line = daemon_client.read_basis(options)
    fresh = anyio.run(oneshot.snapshot, root, basis.snapshot.spec, options.timeouts)
    return replace(fresh, spec=basis.snapshot.spec), first_line


# Texts


def _join(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def results_text(results: tuple[Result, ...], late: str) -> str:
    """One line for each group, and a second one with its hint. ``late``: the hint if a write takes long."""
    return "\n".join(line for result in results for line in _lines(result, late))


def files_text(changed: BootFiles, *, dry_run: bool) -> str:
    """The changed files, with their content if they are only planned, and the command for the initramfs."""
    lines: list[str] = []
    for file in changed.files:
        lines.append(f"{'would be ' if dry_run else ''}{file.status}: {file.path}")
        lines += [f"    {line}" for line in file.text.splitlines()] if dry_run else []
    if changed.files:
        lines.append(f"  to do: {changed.then or _NO_TOOL}")
    return "\n".join(lines)


def _lines(result: Result, late: str) -> Iterator[str]:
    if result.outcome is Outcome.REFUSED:
        for problem in result.refusals:
            yield f"refused: {problem.message}"
            yield f"  to do: {problem.hint}"
    elif result.outcome is Outcome.NOTHING:
        yield f"nothing to do: {naming.shorten(result.functions, SHOWN)} ({result.message})"
    else:
        yield f"{result.outcome}: {result.message}"
        if result.outcome is Outcome.LATE:
            yield f"  to do: {late}"
