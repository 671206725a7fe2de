# SPDX-License-Identifier: Apache-2.0
"""Asking the running daemon: where it answers, how it is, and what is in force in it.

It is found without a valid configuration: it may run well on its old settings while the file is being mended.
Whose settings count is a line of its own, to be said before the answer.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent import config
from nodeagent.agent import tell
from nodeagent.base import advice
from nodeagent.base.advice import Doing
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.kernel.root import Root

if TYPE_CHECKING:
    import argparse

    from nodeagent.agent.tell.basis import Basis

SOCKET = "status.socket"


def root_of(options: argparse.Namespace) -> Root:
    """The root of all host paths. :raises ConfigError: if there is no host below it, and none is saved."""
    prefix = str(options.root)
    try:
        wrong = _no_root(prefix, saved=getattr(options, "host", None) is not None)
    except OSError as error:
        what = f'--root "{prefix}": {advice.words(error)}'
        raise ConfigError(what, advice.on(error, Doing.READ)) from error
    if wrong:
        raise ConfigError(f'--root "{prefix}": {wrong}', "give the directory that holds sys/ and dev/")
    return Root(str(Path(prefix).absolute()))


def _no_root(prefix: str, *, saved: bool) -> str:
    """Why no host can be below it, "" if one can. :raises OSError: if it cannot be looked at."""
    if not prefix:
        return "it is empty"
    if not _is_directory(prefix):
        return "no such directory"
    return "" if saved or _is_directory(f"{prefix}/sys") else "there is no sys/ in it"


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116  text in, answer out
    except (FileNotFoundError, NotADirectoryError):
        return False


def sources(options: argparse.Namespace, root: Root) -> config.Sources:
    """Where the settings of this shell come from."""
    return config.Sources(root.prefix, config.flags_from(options), os.environ)


def settings(options: argparse.Namespace, root: Root) -> config.Settings:
    """The settings of this shell. :raises ConfigError: if they cannot be meant."""
    return config.load(sources(options, root))


def socket_path(options: argparse.Namespace, root: Root) -> str:
    """Where a daemon would answer. :raises ConfigError: if the flag for it is wrong."""
    from nodeagent.config import single

    return root.path(single.value(SOCKET, sources(options, root)))


def status(options: argparse.Namespace, root: Root) -> Any:
    """The document of the status socket. :raises NodeagentError: if no daemon answers."""
    from nodeagent.base import sockets

    path = socket_path(options, root)
    try:
        return sockets.ask(path, options.timeouts.local_socket_answer)
    except PermissionError as error:
        raise NodeagentError(_not_for_all(path), advice.on(error, Doing.READ)) from error
    except (OSError, ValueError) as error:
        raise NodeagentError(
            f"no daemon answers at {path}: {advice.words(error)}", _how_to_start(options, root)
        ) from error


def _how_to_start(options: argparse.Namespace, root: Root) -> str:
    """What to do where no daemon answers: with a wrong configuration a start may fail again."""
    try:
        settings(options, root)
    except ConfigError as error:
        return f"mend the configuration first: {error.what}: {error.hint}"
    if not root.is_host:  # the service of this machine is for another host
        return f"start one for that host with: nodeagent run --root {root.prefix}"
    return "start it with: sudo systemctl start nodeagent (or nodeagent run); see journalctl -u nodeagent"


def refused(options: argparse.Namespace, root: Root) -> str:
    """That the newest configuration is not in force in the running daemon; "" if it is, or none answers."""
    from nodeagent.base import sockets
    from nodeagent.model.shares import not_in_force

    try:
        error = sockets.ask(socket_path(options, root), options.timeouts.local_socket_answer)[
            "configuration"
        ]["error"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f"{not_in_force(error.splitlines()[0])}; what follows is older" if error else ""


def listed(options: argparse.Namespace, root: Root, device_id: str) -> tuple[str, str] | None:
    """How the running daemon lists an id that is Unhealthy, and what to do; None if it does not.

    The device may have gone: what a pod holds stays listed until that ends.
    """
    from nodeagent.base import sockets

    try:
        resources = sockets.ask(socket_path(options, root), options.timeouts.local_socket_answer)["resources"]
        found = [(each["name"], device) for each in resources for device in each["devices"]]
        return next(
            (f"{device_id} is listed as {name}, Unhealthy: {device['what']}", device["hint"])
            for name, device in found
            if device["id"] == device_id and not device["healthy"]
        )
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def daemon(options: argparse.Namespace, root: Root) -> tuple[Basis | None, str]:
    """What is in force in the daemon, None if there is none; and what to say first, "" for nothing."""
    path = socket_path(options, root)
    try:
        basis = _basis(path, options.timeouts.local_socket_answer)
    except (OSError, ValueError, ConfigError) as error:
        denied = isinstance(error, PermissionError)
        why = _not_for_all(path) if denied else f"no daemon answers at {path} ({advice.words(error)})"
        return None, f"{why}: this is what one with the settings of this shell would do"
    return basis, _unused(config.flags_from(options))


def in_force(options: argparse.Namespace, root: Root) -> tuple[config.Settings, str]:
    """The settings of the daemon, with the flags of this call over them; without one, those of the shell.

    And what to say first, "" for nothing. :raises ConfigError: if they cannot be meant.
    """
    basis, first_line = daemon(options, root)
    if basis is None:
        return settings(options, root), first_line
    return config.again(basis.values, config.flags_from(options)), ""


def _basis(path: str, limit: float) -> Basis:
    from nodeagent.base import sockets

    document = sockets.ask(tell.snapshot_socket(path), limit)
    from nodeagent.agent.tell import basis  # here: where nobody answers, it is not needed

    return basis.load(document)


def _not_for_all(path: str) -> str:
    """There may well be a daemon; root is refused, too, where something confines it."""
    who = "this root is kept from asking" if os.geteuid() == 0 else "only root may ask"
    return f"{who} whether a daemon answers at {path}"


def _unused(flags: Mapping[str, str]) -> str:
    """The line on flags that count for nothing; that of the socket has led to the daemon."""
    from nodeagent.config import table

    unused = [table.BY_KEY[key].flag or key for key in flags if key != SOCKET]
    return f"not used: {', '.join(unused)}; the settings of the running daemon count" if unused else ""
