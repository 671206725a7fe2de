# SPDX-License-Identifier: Apache-2.0
"""``nodeagent bind`` and ``release``: who carries the request out, and how it went.

There is one writer: the daemon where one runs, asked at a socket of its own; else this process, under the
daemon's lock. A daemon that has the lock and does not answer is starting, or ending: that is waited for.
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

import anyio

from nodeagent.agent import tell
from nodeagent.base import advice, log, sockets, supervise
from nodeagent.base.advice import Doing
from nodeagent.base.errors import AlreadyRunning, ConfigError, NodeagentError
from nodeagent.base.timeouts import Timeouts
from nodeagent.cli import asking, booting, output
from nodeagent.kernel.root import Root
from nodeagent.model import plain
from nodeagent.model.bootfile import BootFiles
from nodeagent.model.ids import VFIO_PCI, vfio_driver
from nodeagent.model.request import Answer, Asking, Became, Request
from nodeagent.policy.change import byhand
from nodeagent.render import byhand as rendering
from nodeagent.render import documents

if TYPE_CHECKING:
    import argparse

_WELL = (Became.DONE, Became.PLANNED, Became.NOTHING)
_ELSEWHERE = "ask where it runs: as root on the host, or in its pod by kubectl exec; see nodeagent status"
_BY_DAEMON = "nothing: the daemon goes on when the kernel lets it; nodeagent status tells of it"
_BY_HAND = "ask again when whoever uses it has let go, or start the daemon: both end what was begun"


def bind(options: argparse.Namespace) -> int:
    """Bind functions to a VFIO driver."""
    if not vfio_driver(options.driver):
        hint = f"give {VFIO_PCI}, or a variant of it, such as mlx5_vfio_pci"
        raise ConfigError(f'--driver: "{options.driver}" is no VFIO driver', hint)
    request = _request(options, Asking.BIND, options.driver)
    return booting.bind(options, request) if options.at_boot else _carry_out(options, request, BootFiles())


def release(options: argparse.Namespace) -> int:
    """Give functions their own drivers back."""
    return _carry_out(options, *booting.released(options, _request(options, Asking.RELEASE, VFIO_PCI)))


def _request(options: argparse.Namespace, what: Asking, driver: str) -> Request:
    """:raises ConfigError: if a name means nothing."""
    for name in options.names:
        byhand.selector(name)
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
    root = asking.root_of(options)
    path = tell.request_socket(asking.socket_path(options, root))
    timeouts: Timeouts = options.timeouts
    until = time.monotonic() + timeouts.daemon_start
    while True:
        try:
            return _of_daemon(path, request, timeouts.daemon_answer), ""
        except ConnectionError as error:
            absent = str(error)
        try:
            return _of_this_process(options, root, request), f"{absent}: this command does it itself"
        except AlreadyRunning as error:
            if time.monotonic() >= until:
                what = f"{error.what.partition(';')[0]}, and does not answer at {path}"
                raise NodeagentError(what, _ELSEWHERE) from error
        time.sleep(timeouts.daemon_start_poll)


def _of_daemon(path: str, request: Request, limit: float) -> Answer:
    """Its answer within ``limit`` seconds.

    :raises ConnectionError: if no daemon answers.
    :raises NodeagentError: if it must not be asked.
    """
    question = json.dumps(plain.dump(request)).encode()
    try:
        return plain.load(Answer, sockets.ask(path, limit, question))
    except PermissionError as error:
        raise NodeagentError(
            f"only root may ask for that, at {path}", advice.on(error, Doing.READ)
        ) from error
    except TimeoutError as error:
        what = f"the daemon has not answered at {path} for {limit:g} s"
        raise NodeagentError(what, "nodeagent status tells what it does now") from error
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise ConnectionError(f"no daemon answers at {path} ({advice.words(error)})") from error
    except (OSError, ValueError, TypeError) as error:
        what = f"the daemon has not answered at {path}: {error}"
        raise NodeagentError(
            what, "see journalctl -u nodeagent, and nodeagent plan for what is to be done"
        ) from error


def _of_this_process(options: argparse.Namespace, root: Root, request: Request) -> Answer:
    """:raises AlreadyRunning: if there is a daemon all the same. :raises ConfigError: if it is not root."""
    booting.must_be_root(root, request)
    settings = asking.settings(options, root)
    from nodeagent.agent import byhand as alone  # here: a daemon spares it

    logging.getLogger(log.LOGGER).addHandler(logging.NullHandler())  # the answer tells it all

    async def main() -> Answer:
        return await alone.carried_out(root, settings, options.timeouts, request)

    try:
        return anyio.run(main)
    except BaseExceptionGroup as group:
        if (one := supervise.alone(group, NodeagentError)) is None:
            raise
        raise one from group
