# SPDX-License-Identifier: Apache-2.0
"""The only client of the daemon's socket: reads its Status, Snapshot and settings, sends manual requests.

The socket is found without a valid configuration, because the daemon may run with its last valid settings
while the file is edited. Commands that compute decisions use a Basis. The Basis comes from the daemon; if no
daemon answers, this process scans the host with the settings of the command, and prints a line that says so.
For a saved host, the settings of the command are used, without the daemon. ``status`` needs no scan, so the
functions that scan import the code for it themselves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nodeagent import config
from nodeagent.base import hints, sockets
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.cli import args
from nodeagent.kernel.root import Root
from nodeagent.model import plain
from nodeagent.model.change import Answer, Request

if TYPE_CHECKING:
    import argparse

    from nodeagent.agent.reporting.basis import Basis
    from nodeagent.model.host import Host
    from nodeagent.model.kubevirt import KubeVirtCR

_SOCKET = "status.socket"
_SHELL_COUNTS = "showing what a daemon with the settings of this shell would do"
_MAX_BYTES = 64 * 1024 * 1024  # of a saved host; one function takes half a KiB
_MAKE = "create one with: nodeagent scan -o json > FILE"


def socket_path(options: argparse.Namespace) -> str:
    """Return the path of the daemon's socket. :raises ConfigError: if the flag for it is invalid."""
    return args.find_root(options).path(config.load_one(_SOCKET, args.find_sources(options)))


# The Status


def read_status(options: argparse.Namespace) -> Any:
    """Return the Status as JSON. :raises NodeagentError: if no daemon answers."""
    root, path = args.find_root(options), socket_path(options)
    try:
        return sockets.ask(path, "/status", options.timeouts.local_socket_answer)
    except PermissionError as error:
        raise NodeagentError(_describe_not_permitted(path), hints.for_errno(error, "read")) from error
    except ValueError as error:
        raise describe_unreadable(error, root) from error
    except OSError as error:
        raise NodeagentError(
            f"no daemon answers at {path}: {hints.strerror(error)}", _hint_at_start(options, root)
        ) from error


def find_status(options: argparse.Namespace) -> Any:
    """Return the Status as JSON; None if no daemon answers."""
    try:
        return read_status(options)
    except NodeagentError:
        return None


def describe_unreadable(error: Exception, root: Root) -> NodeagentError:
    """The error for an answer from a daemon of another version."""
    if root.is_host:
        restart = "restart it with: sudo systemctl restart nodeagent"
    else:  # the service of this machine is for another host
        restart = f"end it, and start another with: nodeagent run --root {root.prefix}"
    what = f"the daemon's answer cannot be read: {error}"
    return NodeagentError(what, f"the daemon has another version than this command: {restart}")


def _hint_at_start(options: argparse.Namespace, root: Root) -> str:
    """The hint if no daemon answers; with an invalid configuration, it is the fix for the configuration."""
    try:
        args.load_settings(options)
    except ConfigError as error:
        return f"fix the configuration first:  {error.what}: {error.hint}"
    if not root.is_host:  # the service of this machine is for another host
        return f"start one for that host with: nodeagent run --root {root.prefix}"
    return "start it with: sudo systemctl start nodeagent (or nodeagent run); see journalctl -u nodeagent"


def _describe_not_permitted(path: str) -> str:
    """The message that the socket refuses this user, even root, although a daemon may run."""
    who = "this root user is confined, and cannot" if os.geteuid() == 0 else "only root can"
    return f"{who} connect to the daemon at {path}"


# The Snapshot and the settings


def find_basis(options: argparse.Namespace) -> tuple[Basis | None, str]:
    """Return the daemon's Basis (None if no daemon answers), and a message to print first or ""."""
    path = socket_path(options)
    try:
        document = sockets.ask(path, "/snapshot", options.timeouts.local_socket_answer)
        from nodeagent.agent.reporting import basis  # here: not needed where no daemon answers

        found = basis.load(document)
    except PermissionError:
        return None, f"{_describe_not_permitted(path)}: {_SHELL_COUNTS}"
    except (OSError, ValueError, ConfigError) as error:
        return None, f"no daemon answers at {path} ({hints.strerror(error)}): {_SHELL_COUNTS}"
    return found, _describe_unused(config.flags_from(options))


def read_settings(options: argparse.Namespace) -> tuple[config.Settings, str]:
    """Return the settings of the daemon, overridden by the command's flags; without a daemon, the command's
    settings.

    The second value is a message to print first, or "". :raises ConfigError: if the settings are invalid.
    """
    basis, first_line = find_basis(options)
    if basis is None:
        return args.load_settings(options), first_line
    return config.from_values(basis.values, config.flags_from(options)), ""


def read_basis(options: argparse.Namespace, cr: KubeVirtCR | None = None) -> tuple[Basis, str]:
    """Return the Basis of the daemon, of a scan by this process, or of the saved host of ``--host``.

    The second value is a message to print first, or "". ``cr``: a KubeVirt CR to use with the settings of the
    command; a daemon uses its own. :raises ConfigError: if the file is no saved host.
    """
    if args.is_saved(options):
        return _scan(options, cr, _read_saved(options.host)), ""
    basis, first_line = find_basis(options)
    return basis or _scan(options, cr), first_line


def read_named_basis(options: argparse.Namespace) -> tuple[Basis, str]:
    """As ``read_basis``, with all names and USB devices; a daemon reads only the ones that it needs."""
    import anyio

    from nodeagent.agent import oneshot

    basis, first_line = read_basis(options)
    root = args.find_root(options)
    snapshot = anyio.run(oneshot.with_names, root, basis.snapshot)
    if not args.is_saved(options):
        snapshot = anyio.run(oneshot.with_usb, root, snapshot)
    return basis._replace(snapshot=snapshot), first_line


def _scan(options: argparse.Namespace, cr: KubeVirtCR | None, saved: Host | None = None) -> Basis:
    """Scan and return a Basis. Without a daemon, nothing is known about pods and earlier decisions."""
    import anyio

    from nodeagent.agent import oneshot
    from nodeagent.agent.reporting.basis import Basis
    from nodeagent.policy import merge

    root = args.find_root(options)
    own = args.load_settings(options)
    spec = merge.merge(own.configuration, cr)
    snapshot = anyio.run(oneshot.snapshot, root, spec, options.timeouts, saved)
    return Basis(snapshot, {}, own.values, own.warnings)


def _read_saved(path: str) -> Host:
    from nodeagent.base import files
    from nodeagent.model import host_json

    try:
        document = json.loads(files.read_input(path, _MAX_BYTES))
    except OSError as error:
        raise ConfigError(
            f"{path}: {hints.strerror(error)}", hints.for_errno(error, "read", _MAKE)
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}", _MAKE) from error
    return host_json.load(document)


def _describe_unused(flags: Mapping[str, str]) -> str:
    """The message that flags have no effect, because the daemon's settings count; "" if there are none."""
    unused = [config.BY_KEY[key].flag or key for key in flags if key != _SOCKET]
    return (
        f"flags without effect: {', '.join(unused)}; the running daemon has its own settings"
        if unused
        else ""
    )


# Manual requests


def send_request(path: str, wanted: Request, limit: float) -> Answer:
    """Send a manual request to the daemon and return its answer, within ``limit`` seconds.

    :raises ConnectionError: if no daemon answers.
    :raises NodeagentError: if this user is not permitted, or the daemon does not finish its answer.
    """
    body = json.dumps(plain.dump(wanted)).encode()
    try:
        return plain.load(Answer, sockets.ask(path, "/requests", limit, body))
    except PermissionError as error:
        what = f"only root may send requests to {path}"
        raise NodeagentError(what, hints.for_errno(error, "read")) from error
    except TimeoutError as error:
        what = f"the daemon has not answered at {path} for {limit:g} s"
        raise NodeagentError(what, "see nodeagent status for the changes in progress") from error
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise ConnectionError(f"no daemon answers at {path} ({hints.strerror(error)})") from error
    except (OSError, ValueError, TypeError) as error:
        what = f"the daemon has not answered at {path}: {error}"
        hint = "see journalctl -u nodeagent, and nodeagent plan for the due changes"
        raise NodeagentError(what, hint) from error
