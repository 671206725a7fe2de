# SPDX-License-Identifier: Apache-2.0
"""``nodeagent bug-report``: prints a saved host and all other facts for a bug report as one JSON document.

The document has the format of ``scan -o json``, so ``--host`` of the other commands reads it. Below
``report`` it has the versions, the settings in force, the Status of the daemon, and the results of ``check``.
"""

from __future__ import annotations

import argparse
import platform
from typing import Any, NamedTuple

import anyio

from nodeagent import __version__
from nodeagent.agent import oneshot
from nodeagent.agent.reporting.basis import Basis
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.check import report
from nodeagent.cli import args, check, config, daemon_client, output, scan
from nodeagent.cli.check import Readiness
from nodeagent.cli.config import Settings
from nodeagent.kernel.root import Root
from nodeagent.model import plain
from nodeagent.model.spec import Spec

_OS_RELEASE = "/etc/os-release"


class Report(NamedTuple):
    """The facts of a bug report besides the host. ``status`` is None if no daemon answers; ``no_status`` is
    the reason.

    If the configuration is invalid, ``readiness`` is None, and ``settings`` have only the error.
    """

    version: str
    python: str
    kernel: str
    machine: str
    os: str
    settings: Settings
    readiness: Readiness | None
    status: Any
    no_status: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the settings."""
    args.add_settings(parser)


def run(options: argparse.Namespace) -> int:
    """Print the report; an incomplete report says why. :raises NodeagentError: if the host cannot be read."""
    readiness: Readiness | None = None
    try:
        basis, first_line = daemon_client.read_named_basis(options)
        readiness = check.summarize(anyio.run(report.run, check.describe_node(options, basis)))
    except ConfigError as error:
        basis, first_line = _scan_without_settings(options, error), error.what
    status, no_status = None, ""
    try:
        status = daemon_client.read_status(options)
    except NodeagentError as error:
        no_status = error.what
    made = Report(
        __version__,
        platform.python_version(),
        platform.release(),
        platform.machine(),
        _name_os(args.find_root(options)),
        config.as_document(basis.values, basis.warnings),
        readiness,
        status,
        no_status,
    )
    return output.print_answer(
        output.format_document("json", scan.document(basis) | {"report": plain.dump(made)}), first_line
    )


def _scan_without_settings(options: argparse.Namespace, error: ConfigError) -> Basis:
    """Scan the host without rules, because the configuration is invalid.

    :raises ConfigError: if there is no host.
    """
    snapshot = anyio.run(oneshot.snapshot, args.find_root(options), Spec(), options.timeouts, None)
    return Basis(snapshot, {}, (), (error.lines(),))


def _name_os(root: Root) -> str:
    """``PRETTY_NAME`` of os-release(5); "" if it has none."""
    for line in (root.text(_OS_RELEASE) or "").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip('"')
    return ""
