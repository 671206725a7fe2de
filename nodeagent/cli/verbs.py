# SPDX-License-Identifier: Apache-2.0
"""The verbs, each one short function: options in, answer on stdout, exit code out.

Each one imports what it needs when it runs, so that a short one starts quickly. Where a daemon answers, its
settings and verdicts count; ``asking`` knows how. Nothing is said before the answer is known, so that a
mistake is its own two lines.
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from nodeagent import config
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.cli import asking

if TYPE_CHECKING:
    import argparse

    from nodeagent.agent.tell.in_force import InForce
    from nodeagent.model.ids import PciAddress

FINE, FAILED, USAGE, WRONG = 0, 1, 2, 3


def run(options: argparse.Namespace) -> int:
    """Be the daemon until told to stop."""
    root = asking.root_of(options)
    if root.is_host and os.geteuid() != 0:
        raise ConfigError(
            "nodeagent run must be root: it serves sockets that only root may use",
            "start it with sudo, or try it out with: nodeagent demo",
        )
    settings = asking.settings(options, root)
    from nodeagent.base import log, logsinks, memory

    memory.begin_start()
    from nodeagent import app

    def set_log(wanted: config.Log) -> None:
        logsinks.setup(wanted.format, wanted.level, os.environ, sys.stderr)

    set_log(settings.log)
    for warning in settings.warnings:
        log.event(log.CONFIG_WARNING, text=warning)
    app.run(settings, asking.sources(options, root), set_log)
    sys.stderr.flush()
    app.leave(FINE)
    return FINE


def scan(options: argparse.Namespace) -> int:
    """Show all devices and what becomes of them."""
    from nodeagent.model import host_json
    from nodeagent.policy.offer import turn
    from nodeagent.render import scan

    basis, first_line = asking.present(options, asking.root_of(options))
    if options.output == "json":
        return _answer(_json(host_json.dump(basis.snapshot.host), 1), first_line)
    return _answer(scan.text(turn.first(basis.snapshot, basis.matched)), first_line)


def plan(options: argparse.Namespace) -> int:
    """Show what would be done to the host."""
    from nodeagent.cli import planning
    from nodeagent.policy.change import plan as changes
    from nodeagent.render import plan as rendering

    basis, first_line = _basis(options)
    snapshot, unknown = planning.complete(basis.snapshot, asking.root_of(options), options.machine_id)
    planned, manage = changes.plan(snapshot), snapshot.desired.mdevs.manage
    as_json = options.output == "json"
    text = _json(rendering.document(planned, manage)) if as_json else rendering.text(planned, manage)
    return _answer(text, first_line, *basis.warnings, unknown)


def explain(options: argparse.Namespace) -> int:
    """Say why a device is offered as it is."""
    from nodeagent.model.ids import mdev_uuid, pci_address
    from nodeagent.policy.offer import explain, turn
    from nodeagent.render import explain as rendering

    address = pci_address(options.device)
    device = address or mdev_uuid(options.device)
    if device is None:
        raise ConfigError(
            f"{options.device} is neither a PCI address nor a UUID",
            "give one such as 0000:3b:00.0; nodeagent scan lists them",
        )
    basis, first_line = _basis(options, address)
    explanation = explain.explain(device, turn.first(basis.snapshot, basis.matched))
    if explanation is None:
        raise NodeagentError(f"there is no device {device} on this host", "nodeagent scan lists all devices")
    if options.output == "json":
        return _answer(_json(rendering.document(explanation)), first_line)
    return _answer(rendering.text(explanation), first_line)


def _basis(options: argparse.Namespace, costly: PciAddress | None = None) -> tuple[InForce, str]:
    """What to decide from, on the saved host if one is given, and what to say first.

    ``costly`` is a function of the present host of which the costly facts are wanted, too.
    """
    root = asking.root_of(options)
    if options.host is not None:
        return asking.of_shell(options, root, asking.saved_host(options.host)), ""
    basis, first_line = asking.present(options, root)
    return basis if costly is None else asking.with_hints(basis, root, costly), first_line


def status(options: argparse.Namespace) -> int:
    """Ask the daemon how it is."""
    from nodeagent.model import plain
    from nodeagent.model.status import Status
    from nodeagent.render import status

    document = asking.status(options, asking.root_of(options))
    try:
        value = plain.load(Status, document)
    except (TypeError, ValueError) as error:
        raise NodeagentError(
            f"the daemon's answer cannot be read: {error}",
            "it is of another version than this command: restart it with: systemctl restart nodeagent",
        ) from error
    _answer(_json(document) if options.output == "json" else status.text(value))
    return WRONG if value.problems else FINE


def configuration(options: argparse.Namespace) -> int:
    """Show the settings in force, check a file, or print the schema."""
    from nodeagent.render import settings

    if options.schema:
        return _answer(_json(config.schema()))
    in_force, first_line = None, ""
    if not options.check:
        in_force, first_line = asking.daemon(options, asking.root_of(options))
    shown = in_force or _of_shell(options)
    if options.check and options.output == "text":
        return _answer(f"{options.check}: fine", *shown.warnings)
    if options.output == "json":
        return _answer(settings.as_json(shown.values, shown.warnings), first_line, *shown.warnings)
    return _answer(settings.text(shown.values), first_line, *shown.warnings)


def _of_shell(options: argparse.Namespace) -> config.Settings:
    if options.check:
        return config.check_file(options.check)
    return asking.settings(options, asking.root_of(options))


def demo(options: argparse.Namespace) -> int:
    """Play the demo."""
    from nodeagent.demo import story

    return story.run(keep=options.keep)


def _json(document: Any, indent: int = 2) -> str:
    return json.dumps(document, indent=indent)


def _answer(text: str, *messages: str) -> int:
    """Print the messages that say anything, then the answer."""
    for message in filter(None, messages):
        print(f"nodeagent: {message}", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without our signs gets escapes
    print(text, flush=True)  # a reader that has gone is noticed here, not when Python exits
    return FINE
