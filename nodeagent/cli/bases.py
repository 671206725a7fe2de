# SPDX-License-Identifier: Apache-2.0
"""What a verb decides from: what is in force in the daemon; without one, this shell's settings and the host.

A saved host is decided on with this shell's settings, and no daemon is asked: none has to do with it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio

from nodeagent.agent import oneshot
from nodeagent.agent.tell.basis import Basis
from nodeagent.base import files, hints
from nodeagent.base.errors import ConfigError
from nodeagent.cli import daemon_client, shell
from nodeagent.model import host_json
from nodeagent.policy import merge

if TYPE_CHECKING:
    import argparse

    from nodeagent.model.host import Host
    from nodeagent.model.ids import PciAddress
    from nodeagent.model.kubevirt import KubeVirtCR

_MAX_BYTES = 64 * 1024 * 1024  # of a saved host, in which a function takes half a KiB
_MAKE = "make one with: nodeagent scan -o json > FILE"


def present(options: argparse.Namespace, cr: KubeVirtCR | None = None) -> tuple[Basis, str]:
    """What is in force on the present host, and what to say first, "" for nothing."""
    basis, first_line = daemon_client.in_force(options, shell.root_of(options))
    return basis or _of_shell(options, cr=cr), first_line


def chosen(
    options: argparse.Namespace, costly: PciAddress | None = None, cr: KubeVirtCR | None = None
) -> tuple[Basis, str]:
    """The same, or what is in force on the saved host if the options name one.

    ``costly`` is a function of the present host of which the costly facts are wanted, too. ``cr`` is a
    KubeVirt CR for the settings of this shell; a daemon goes by its own.

    :raises ConfigError: if the file holds no saved host.
    """
    if options.host is not None:
        return _of_shell(options, _saved(options.host), cr), ""
    basis, first_line = present(options, cr)
    return basis if costly is None else _with_hints(basis, options, costly), first_line


def named(options: argparse.Namespace) -> tuple[Basis, str]:
    """As ``chosen``, with the names of all devices, and with all USB devices: a daemon knows what it must."""
    basis, first_line = chosen(options)
    root = shell.root_of(options)
    snapshot = anyio.run(oneshot.with_names, root, basis.snapshot)
    if options.host is None:
        snapshot = anyio.run(oneshot.with_usb, root, snapshot)
    return basis._replace(snapshot=snapshot), first_line


def _of_shell(options: argparse.Namespace, saved: Host | None = None, cr: KubeVirtCR | None = None) -> Basis:
    root = shell.root_of(options)
    own = shell.settings(options, root)
    spec = merge.merge(own.configuration, cr)
    snapshot = anyio.run(oneshot.snapshot, root, spec, options.timeouts, saved)
    return Basis(snapshot, {}, own.values, own.warnings)


def _with_hints(basis: Basis, options: argparse.Namespace, address: PciAddress) -> Basis:
    root = shell.root_of(options)
    snapshot = anyio.run(oneshot.with_hints, root, basis.snapshot, address, options.timeouts)
    return basis._replace(snapshot=snapshot)


def _saved(path: str) -> Host:
    try:
        document = json.loads(files.read_input(path, _MAX_BYTES))
    except OSError as error:
        raise ConfigError(
            f"{path}: {hints.strerror(error)}", hints.for_errno(error, "read", _MAKE)
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}", _MAKE) from error
    return host_json.load(document)
