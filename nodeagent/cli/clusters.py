# SPDX-License-Identifier: Apache-2.0
"""``nodeagent cluster check``, and asking the API server as whoever calls.

The settings are those of the daemon where one answers, and flags of the call go over them: so what would come
of another kubeconfig can be seen before it is in force.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import anyio

from nodeagent.agent.cluster import inspection
from nodeagent.agent.cluster.follow import Connection
from nodeagent.base.timeouts import Timeouts
from nodeagent.cli import daemon_client, output, shell
from nodeagent.cluster.api import Session
from nodeagent.cluster.credentials import Credentials
from nodeagent.render import access as rendering
from nodeagent.render import documents

if TYPE_CHECKING:
    import argparse

T = TypeVar("T")


def check(options: argparse.Namespace) -> int:
    """List what is allowed, what is there, and what is missing.

    :raises NodeagentError: if the API server cannot be asked.
    """
    root = shell.root_of(options)
    settings, first_line = daemon_client.settings_in_force(options, root)
    connection = Connection.of(settings, root)
    credentials = connection.credentials
    report = None
    if credentials is not None:
        report = ask(
            credentials,
            options.timeouts,
            lambda session: inspection.inspect(session, settings, connection.node),
        )
    if options.output != output.TEXT:
        answer = rendering.answer(report, str(credentials))
        text = output.formed(options.output, documents.document(answer))
    elif report is None:
        text = output.people(rendering.nothing(settings.configuration.kubevirt.enabled))
    else:
        text = output.people(rendering.text(report, str(credentials)))
    output.answer(text, first_line)
    return output.FINE if report is None or report.well else output.WRONG


def ask(credentials: Credentials, timeouts: Timeouts, question: Callable[[Session], Awaitable[T]]) -> T:
    """What comes of a question. :raises ClusterUnavailable: if the API server cannot be asked."""

    async def asked() -> T:
        async with Session(credentials, timeouts) as session:
            return await question(session)

    return anyio.run(asked)
