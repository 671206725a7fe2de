# SPDX-License-Identifier: Apache-2.0
"""``nodeagent check``: which host is looked at, and by which settings; not what comes of it.

The host and the wishes are the daemon's where one answers, as for every verb. A saved host has no
surroundings, and those of this machine say nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from nodeagent.agent import surroundings
from nodeagent.agent.surroundings import Places
from nodeagent.cli import bases, daemon_client, output, shell
from nodeagent.policy.ready import report
from nodeagent.policy.ready.lines import Evidence
from nodeagent.render import documents, readiness

if TYPE_CHECKING:
    import argparse

    from nodeagent.agent.tell.basis import Basis
    from nodeagent.kernel.root import Root
    from nodeagent.model.host import Host
    from nodeagent.model.surroundings import Surroundings


def check(options: argparse.Namespace) -> int:
    """Say whether the host can give devices away. :raises ConfigError: if the file holds no saved host."""
    basis, first_line = bases.chosen(options)
    host = basis.snapshot.host
    found = report.report(Evidence(host, basis.snapshot.desired, _around(options, basis, host)))
    if options.output == output.TEXT:
        text = readiness.text(found)
    else:
        text = output.formed(options.output, documents.document(readiness.answer(found)))
    output.answer(text, first_line, *basis.warnings)
    return output.FINE if found.well else output.WRONG


def _around(options: argparse.Namespace, basis: Basis, host: Host) -> Surroundings:
    if options.host is not None:
        return surroundings.saved()
    root = shell.root_of(options)
    return anyio.run(surroundings.look, root, host, _places(options, basis, root), options.timeouts)


def _places(options: argparse.Namespace, basis: Basis, root: Root) -> Places:
    """Where the kubelet and the daemon are, by the settings that count."""
    values = {value.key: value.value for value in basis.values}
    return Places(
        plugins=str(values["kubelet.devicePluginDir"]),
        pod_resources=str(values["kubelet.podResources"]),
        status=root.host_path(daemon_client.socket_path(options, root)),
    )
