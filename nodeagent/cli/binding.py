# SPDX-License-Identifier: Apache-2.0
"""``nodeagent bind`` and ``release``: who carries the request out, and how it went.

There is one writer: the daemon where one runs, asked at its socket; else this process, under the
daemon's lock. A daemon that has the lock and does not answer is starting, or ending: that is waited for.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import anyio

from nodeagent.base import log, supervise
from nodeagent.base.errors import AlreadyRunning, ConfigError, NodeagentError
from nodeagent.base.timeouts import Timeouts
from nodeagent.cli import booting, daemon_client, output, shell
from nodeagent.kernel.root import Root
from nodeagent.model.change import Answer, BindAction, BootFiles, Outcome, Request
from nodeagent.model.ids import VFIO_PCI, vfio_driver
from nodeagent.policy.change import byhand
from nodeagent.render import byhand as rendering
from nodeagent.render import documents

if TYPE_CHECKING:
    import argparse

_WELL = (Outcome.DONE, Outcome.PLANNED, Outcome.NOTHING)
_ELSEWHERE = "ask where it runs: as root on the host, or in its pod by kubectl exec; see nodeagent status"
_BY_DAEMON = "nothing: the daemon goes on when the kernel lets it; nodeagent status tells of it"
_BY_HAND = "ask again when whoever uses it has let go, or start the daemon: both end what was begun"


def bind(options: argparse.Namespace) -> int:
    """Bind functions to a VFIO driver."""
    if not vfio_driver(options.driver):
        hint = f"give {VFIO_PCI}, or a variant of it, such as mlx5_vfio_pci"
        raise ConfigError(f'--driver: "{options.driver}" is no VFIO driver', hint)
    request = _request(options, BindAction.BIND, options.driver)
    return booting.bind(options, request) if options.at_boot else _carry_out(options, request, BootFiles())


def release(options: argparse.Namespace) -> int:
    """Give functions their own drivers back."""
    return _carry_out(options, *booting.released(options, _request(options, BindAction.RELEASE, VFIO_PCI)))


def _request(options: argparse.Namespace, what: BindAction, driver: str) -> Request:
    """:raises ConfigError: if a name means nothing."""
    for name in options.names:
        byhand.parse_name(name)
    return Request(what, tuple(options.names), driver, options.dry_run)


def _carry_out(options: argparse.Namespace, request: Request, files: BootFiles) -> int:
    answer, first_line = _answered(options, request)
    if answer.error:
        raise NodeagentError(answer.error, answer.hint)
    if options.output == output.TEXT:
        late = _BY_HAND if first_line else _BY_DAEMON
        parts = (rendering.files(files, dry_run=request.dry_run), rendering.text(answer.results, late))
        text = output.people("\n".join(filter(None, parts)))
    else:
        document = documents.document(rendering.OutcomeAnswer(answer.results, files.files, files.then))
        text = output.formed(options.output, document)
    output.answer(text, first_line)
    return output.FINE if all(each.became in _WELL for each in answer.results) else output.WRONG


def _answered(options: argparse.Namespace, request: Request) -> tuple[Answer, str]:
    """The answer, and what to say first. :raises NodeagentError: if nobody can give one."""
    root = shell.root_of(options)
    path = daemon_client.socket_path(options, root)
    timeouts: Timeouts = options.timeouts
    until = time.monotonic() + timeouts.daemon_start
    while True:
        try:
            return daemon_client.request(path, request, timeouts.daemon_answer), ""
        except ConnectionError as error:
            absent = str(error)
        try:
            return _of_this_process(options, root, request), f"{absent}: this command does it itself"
        except AlreadyRunning as error:
            if time.monotonic() >= until:
                what = f"{error.what.partition(';')[0]}, and does not answer at {path}"
                raise NodeagentError(what, _ELSEWHERE) from error
        time.sleep(timeouts.daemon_start_poll)


def _of_this_process(options: argparse.Namespace, root: Root, request: Request) -> Answer:
    """:raises AlreadyRunning: if there is a daemon all the same. :raises ConfigError: if it is not root."""
    booting.must_be_root(root, request)
    settings = shell.settings(options, root)
    from nodeagent.agent.changing import requests  # here: a daemon spares it

    logging.getLogger(log.LOGGER).addHandler(logging.NullHandler())  # the answer tells it all

    async def main() -> Answer:
        return await requests.carry_out_alone(root, settings, options.timeouts, request)

    try:
        return anyio.run(main)
    except BaseExceptionGroup as group:
        if (one := supervise.only_error(group, NodeagentError)) is None:
            raise
        raise one from group
