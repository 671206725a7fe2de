# SPDX-License-Identifier: Apache-2.0
"""``nodeagent cluster check``: lists the needed permissions and objects at the API server, and fixes.

The command uses the settings of the daemon if one answers. The flags of the command override these settings,
so that another kubeconfig can be tried.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple, TypeVar

import anyio

from nodeagent.agent.cluster import inspection
from nodeagent.agent.cluster.connection import Connection
from nodeagent.agent.cluster.inspection import Check
from nodeagent.base.timeouts import Timeouts
from nodeagent.cli import args, daemon_client, output
from nodeagent.cluster.api import Session
from nodeagent.cluster.credentials import Credentials
from nodeagent.model.spec import use_dra

T = TypeVar("T")
_WHY_NOT = {
    "false": "kubevirt.enabled is false: this node does not use the API server",
    "auto": "kubevirt.enabled is auto, and there are no credentials: the API server is not used",
    "dra": "a resource has via: dra, but there are no credentials: set kubeconfig",
}
_TRY = "to see the needed permissions: nodeagent cluster check --kubevirt-enabled true --kubeconfig FILE"


class ClusterCheck(NamedTuple):
    """The checks at the API server; ``enabled`` is false if the settings use no API server."""

    enabled: bool
    user: str
    credentials: str
    ok: bool
    checks: tuple[Check, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the word "check"."""
    parser.add_argument("what", choices=("check",), help="list needed permissions and objects")
    args.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """List the permissions and objects that are present or missing.

    :raises NodeagentError: if the API server does not answer.
    """
    settings, first_line = daemon_client.read_settings(options)
    connection = Connection.of(settings, args.find_root(options))
    by_dra = use_dra(settings.configuration.rules)
    credentials = connection.credentials or (connection.credentials_for_dra if by_dra else None)
    if credentials is None:
        off = ClusterCheck(False, "", "", True, ())
        enabled = "dra" if by_dra else settings.configuration.kubevirt.enabled
        return output.emit(options, "ClusterCheck", off, lambda: not_followed(enabled), first_line)
    user, checks = ask(
        credentials,
        options.timeouts,
        lambda session: inspection.inspect(session, settings, connection.node),
    )
    found = summarize(user, str(credentials), checks)
    output.emit(options, "ClusterCheck", found, lambda: text(found), first_line)
    return output.FINE if found.ok else output.WRONG


def summarize(user: str, credentials: str, checks: tuple[Check, ...]) -> ClusterCheck:
    """Return the checks with the overall verdict; ``credentials`` describes the credentials."""
    well = all(check.ok for check in checks if check.required)
    shown = tuple(check._replace(hint="") if check.ok else check for check in checks)
    return ClusterCheck(True, user, credentials, well, shown)


def ask(credentials: Credentials, timeouts: Timeouts, question: Callable[[Session], Awaitable[T]]) -> T:
    """Return the answer of the API server. :raises ClusterUnavailable: if it does not answer."""

    async def asked() -> T:
        async with Session(credentials, timeouts) as session:
            return await question(session)

    return anyio.run(asked)


def not_followed(enabled: str) -> str:
    """The text of the command if the settings use no API server."""
    return f"{_WHY_NOT[enabled]}\n{_TRY}"


def text(found: ClusterCheck) -> str:
    """One line for each check, a second line with the fix, and the number of problems."""
    user = f" as {found.user}" if found.user else ""
    lines = [f"the API server answers{user}, with {found.credentials}"]
    lines += [line for check in found.checks for line in _lines(check)]
    missing = sum(not check.ok and check.required for check in found.checks)
    return "\n".join([*lines, "", f"problems: {missing}" if missing else "all is well"])


def _lines(check: Check) -> Iterator[str]:
    mark = "yes" if check.ok else "NO" if check.required else "no"
    yield f"{mark:4} {check.subject}" + (f": {check.message}" if check.message else "")
    if not check.ok and check.required:
        yield f"     to do: {check.hint}"
