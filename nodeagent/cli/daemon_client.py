# SPDX-License-Identifier: Apache-2.0
"""The running daemon, asked over its unix socket: its Status, its Snapshot and settings, a request by hand.

Its socket is found without a valid configuration: the daemon may run well on its old settings while the file
is being edited. Commands that go by the daemon's settings print a line first if no daemon answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nodeagent import config
from nodeagent.base import hints, sockets
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.cli import shell
from nodeagent.kernel.root import Root
from nodeagent.model import plain
from nodeagent.model.change import Answer, Request

if TYPE_CHECKING:
    import argparse

    from nodeagent.agent.tell.basis import Basis

_SOCKET = "status.socket"


def socket_path(options: argparse.Namespace, root: Root) -> str:
    """The path of the daemon's socket. :raises ConfigError: if the flag for it is wrong."""
    return root.path(config.load_one(_SOCKET, shell.sources(options, root)))


def status(options: argparse.Namespace, root: Root) -> Any:
    """The Status as JSON. :raises NodeagentError: if no daemon answers."""
    path = socket_path(options, root)
    try:
        return sockets.ask(path, "/status", options.timeouts.local_socket_answer)
    except PermissionError as error:
        raise NodeagentError(_not_permitted(path), hints.for_errno(error, "read")) from error
    except ValueError as error:
        raise unreadable(error, root) from error
    except OSError as error:
        raise NodeagentError(
            f"no daemon answers at {path}: {hints.strerror(error)}", _how_to_start(options, root)
        ) from error


def status_or_none(options: argparse.Namespace, root: Root) -> Any:
    """The Status as JSON; None if no daemon answers."""
    try:
        return status(options, root)
    except NodeagentError:
        return None


def unreadable(error: Exception, root: Root) -> NodeagentError:
    """The error for an answer of a daemon of another version."""
    if root.is_host:
        restart = "restart it with: sudo systemctl restart nodeagent"
    else:  # the service of this machine is for another host
        restart = f"end it, and start another with: nodeagent run --root {root.prefix}"
    what = f"the daemon's answer cannot be read: {error}"
    return NodeagentError(what, f"it is of another version than this command: {restart}")


def refused_configuration(options: argparse.Namespace, root: Root) -> str:
    """A line if the newest configuration is not in force in the daemon; "" if it is, or no daemon answers."""
    from nodeagent.policy.diagnose import not_in_force

    try:
        error = status_or_none(options, root)["configuration"]["error"]
    except (KeyError, TypeError):
        return ""
    return f"{not_in_force(error.splitlines()[0])}; what follows is older" if error else ""


def unhealthy_device(options: argparse.Namespace, root: Root, device_id: str) -> tuple[str, str] | None:
    """The reason and the hint of a device that the daemon lists as Unhealthy; None if it does not.

    The device may have left the host: a device in use stays listed until it is released.
    """
    try:
        return next(
            (f"{device_id} is listed as {resource['name']}, Unhealthy: {device['what']}", device["hint"])
            for resource in status_or_none(options, root)["resources"]
            for device in resource["devices"]
            if device["id"] == device_id and not device["healthy"]
        )
    except (KeyError, TypeError, StopIteration):
        return None


def in_force(options: argparse.Namespace, root: Root) -> tuple[Basis | None, str]:
    """The daemon's Snapshot and settings, None if no daemon answers; and a line to print first, or ""."""
    path = socket_path(options, root)
    try:
        document = sockets.ask(path, "/snapshot", options.timeouts.local_socket_answer)
        from nodeagent.agent.tell import basis  # here: not needed where no daemon answers

        found = basis.load(document)
    except PermissionError:
        return None, f"{_not_permitted(path)}: {_SHELL_COUNTS}"
    except (OSError, ValueError, ConfigError) as error:
        return None, f"no daemon answers at {path} ({hints.strerror(error)}): {_SHELL_COUNTS}"
    return found, _unused_flags(config.flags_from(options))


_SHELL_COUNTS = "this is what one with the settings of this shell would do"


def settings_in_force(options: argparse.Namespace, root: Root) -> tuple[config.Settings, str]:
    """The settings of the daemon, with the flags of this call over them; without one, those of the shell.

    And a line to print first, or "". :raises ConfigError: if they are not valid.
    """
    basis, first_line = in_force(options, root)
    if basis is None:
        return shell.settings(options, root), first_line
    return config.from_values(basis.values, config.flags_from(options)), ""


def request(path: str, wanted: Request, limit: float) -> Answer:
    """The daemon's answer to a request by hand, within ``limit`` seconds.

    :raises ConnectionError: if no daemon answers.
    :raises NodeagentError: if this user may not ask, or the daemon does not answer.
    """
    body = json.dumps(plain.dump(wanted)).encode()
    try:
        return plain.load(Answer, sockets.ask(path, "/requests", limit, body))
    except PermissionError as error:
        what = f"only root may ask for that, at {path}"
        raise NodeagentError(what, hints.for_errno(error, "read")) from error
    except TimeoutError as error:
        what = f"the daemon has not answered at {path} for {limit:g} s"
        raise NodeagentError(what, "nodeagent status tells what it does now") from error
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise ConnectionError(f"no daemon answers at {path} ({hints.strerror(error)})") from error
    except (OSError, ValueError, TypeError) as error:
        what = f"the daemon has not answered at {path}: {error}"
        hint = "see journalctl -u nodeagent, and nodeagent plan for what is to be done"
        raise NodeagentError(what, hint) from error


def _how_to_start(options: argparse.Namespace, root: Root) -> str:
    """The hint where no daemon answers: with a wrong configuration a start may fail again."""
    try:
        shell.settings(options, root)
    except ConfigError as error:
        return f"mend the configuration first: {error.what}: {error.hint}"
    if not root.is_host:  # the service of this machine is for another host
        return f"start one for that host with: nodeagent run --root {root.prefix}"
    return "start it with: sudo systemctl start nodeagent (or nodeagent run); see journalctl -u nodeagent"


def _not_permitted(path: str) -> str:
    """A daemon may run; root is refused, too, where something confines it."""
    who = "this root is kept from asking" if os.geteuid() == 0 else "only root may ask"
    return f"{who} whether a daemon answers at {path}"


def _unused_flags(flags: Mapping[str, str]) -> str:
    """A line on flags without effect; that of the socket has led to the daemon."""
    unused = [config.BY_KEY[key].flag or key for key in flags if key != _SOCKET]
    return f"not used: {', '.join(unused)}; the settings of the running daemon count" if unused else ""
