# SPDX-License-Identifier: Apache-2.0
"""``nodeagent check``: runs ``nodeagent/check`` on this node or on a saved host, and prints the report.

The host and what is wanted of it are the daemon's if one answers, as for every command.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio

from nodeagent.check import report
from nodeagent.check.findings import Node
from nodeagent.cli import bases, daemon_client, output, shell
from nodeagent.kernel.root import Root
from nodeagent.render import documents, readiness

if TYPE_CHECKING:
    import argparse

    from nodeagent.agent.tell.basis import Basis


def check(options: argparse.Namespace) -> int:
    """Report whether the host is ready. :raises ConfigError: if the file holds no saved host."""
    basis, first_line = bases.chosen(options)
    answer = readiness.answer(anyio.run(report.run, _node(options, basis)))
    if options.output == output.TEXT:
        text = readiness.text(answer.lines)
    else:
        text = output.formed(options.output, documents.document(answer))
    output.answer(text, first_line, *basis.warnings)
    return output.FINE if answer.well else output.WRONG


def _node(options: argparse.Namespace, basis: Basis) -> Node:
    root = shell.root_of(options)
    values = {value.key: value.value for value in basis.values}
    saved = options.host is not None
    return Node(
        Root(os.devnull) if saved else root,  # this machine's files say nothing of a saved host
        basis.snapshot.host,
        basis.snapshot.spec,
        str(values["kubelet.devicePluginDir"]),
        str(values["kubelet.podResources"]),
        root.host_path(daemon_client.socket_path(options, root)),
        options.timeouts,
        saved,
    )
