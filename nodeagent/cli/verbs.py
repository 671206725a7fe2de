# SPDX-License-Identifier: Apache-2.0
"""The verbs, each one short function: options in, answer on stdout, exit code out.

Each one imports what it needs when it runs, so that a short one starts quickly. Where a daemon answers, its
settings and verdicts count; ``daemon_client`` and ``bases`` know how.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from nodeagent import config
from nodeagent.base.errors import ConfigError
from nodeagent.cli import daemon_client, output, shell
from nodeagent.cli.output import FINE, WRONG
from nodeagent.config import last_good

if TYPE_CHECKING:
    import argparse

    from nodeagent.agent.tell.basis import Basis

MACHINE = "vmi"  # instead of a name: a virtual machine


def run(options: argparse.Namespace) -> int:
    """Be the daemon until told to stop."""
    root = shell.root_of(options)
    if root.is_host and os.geteuid() != 0:
        raise ConfigError(
            "nodeagent run must be root: it serves sockets that only root may use",
            "start it with sudo, or try it out with: nodeagent demo",
        )
    settings, refused = last_good.at_start(shell.sources(options, root), strict=options.strict)
    from nodeagent.base import log, log_handlers

    gc.collect()
    gc.disable()  # until the daemon is ready: nearly all objects of its start stay
    from nodeagent import app

    lines = log_handlers.LogQueue()
    repeated: float = options.timeouts.repeated_log_lines

    def set_log(wanted: config.Log) -> None:
        log_handlers.setup(wanted.format, wanted.level, os.environ, sys.stderr, repeated, lines=lines)

    set_log(settings.log)
    for warning in settings.warnings:
        log.event(log.CONFIG_WARNING, text=warning)
    if refused is not None:
        log.event(log.CONFIG_LAST_GOOD, error=refused.what, hint=f"{refused.hint}{config.more(refused)}")
    try:
        app.run(settings, shell.sources(options, root), options.timeouts, set_log, refused)
    finally:
        lines.finish(options.timeouts.last_log_lines)
    app.leave(FINE)
    return FINE


def scan(options: argparse.Namespace) -> int:
    """Show all devices and what becomes of them."""
    from nodeagent.cli import scanning

    return scanning.show(options)


def plan(options: argparse.Namespace) -> int:
    """Show what would be done to the host, or what another configuration would change."""
    if options.config is not None:
        from nodeagent.cli import trying

        return trying.show(options)
    from nodeagent.cli import bases, planning
    from nodeagent.policy.change import plan as changes
    from nodeagent.render import documents, plan

    basis, first_line = bases.chosen(options)
    snapshot, unknown = planning.complete(basis.snapshot, options)
    planned, manage = changes.plan(snapshot), snapshot.spec.mdevs.manage
    if options.output == output.TEXT:
        text = output.people(plan.text(planned, manage))
    else:
        text = output.formed(options.output, documents.document(plan.answer(planned, manage)))
    return output.answer(text, first_line, *basis.warnings, unknown)


def explain(options: argparse.Namespace) -> int:
    """Say what becomes of a device, resource, pod or rule, or whether a virtual machine can have its wish."""
    if options.subject == MACHINE:
        from nodeagent.cli import machines

        return machines.explain(options)
    if options.machine is not None or options.cr is not None:
        raise ConfigError("FILE and --cr are for machines", "write: nodeagent explain vmi FILE --cr FILE")
    from nodeagent.cli import explaining

    return explaining.explain(options)


def status(options: argparse.Namespace) -> int:
    """Ask the daemon how it is."""
    from nodeagent.cli import statuses

    return statuses.show(options)


def bind(options: argparse.Namespace) -> int:
    """Bind functions to a VFIO driver."""
    from nodeagent.cli import binding

    return binding.bind(options)


def release(options: argparse.Namespace) -> int:
    """Give functions their own drivers back."""
    from nodeagent.cli import binding

    return binding.release(options)


def check(options: argparse.Namespace) -> int:
    """Say whether this host can give devices to virtual machines."""
    from nodeagent.cli import checking

    return checking.check(options)


def cluster(options: argparse.Namespace) -> int:
    """Check what the API server lets this node do."""
    from nodeagent.cli import clusters

    return clusters.check(options)


def configuration(options: argparse.Namespace) -> int:
    """Show the settings in force, check a file, make one of another tool's, or print the schema."""
    from nodeagent.render import settings

    if options.schema:
        return output.answer(output.formed("json", config.schema()))
    if options.check is not None:
        return _checked(options)
    if options.translated:
        from nodeagent.cli import translating

        return translating.show(options)
    root = shell.root_of(options)
    basis, first_line = daemon_client.in_force(options, root)
    effective = basis or shell.settings(options, root)
    if options.output == output.TEXT:
        text = output.people(settings.text(effective.values))
    else:
        text = _settings(options, effective)
    wrong = daemon_client.refused_configuration(options, root) if basis else ""
    output.answer(text, first_line, wrong, *effective.warnings)
    return WRONG if wrong else FINE


def _checked(options: argparse.Namespace) -> int:
    if options.check:
        effective = config.check_file(options.check)
    else:
        effective = shell.settings(options, shell.root_of(options))
    fine = f"{options.check or 'the settings of this node'}: fine"
    text = fine if options.output == output.TEXT else _settings(options, effective)
    return output.answer(text, *effective.warnings)


def _settings(options: argparse.Namespace, effective: config.Settings | Basis) -> str:
    from nodeagent.render import documents, settings

    answer = settings.answer(effective.values, effective.warnings)
    return output.formed(options.output, documents.document(answer))


def demo(options: argparse.Namespace) -> int:
    """Play the demo. :raises ConfigError: if it is not installed: packages have it apart."""
    try:
        from nodeagent.demo import story
    except ModuleNotFoundError as error:
        if error.name != "nodeagent.demo":
            raise
        raise ConfigError("the demo is not installed", "install the package nodeagent-demo") from error

    return story.run(keep=options.keep or options.page, page=options.page)
