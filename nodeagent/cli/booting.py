# SPDX-License-Identifier: Apache-2.0
"""``nodeagent bind --at-boot``, and what ``release`` takes back of it: files for the next boot.

They are this process's own business, for the daemon's sandbox may write none of them. Only the guards need to
know the host: it is scanned here, and judged by the settings in force.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from nodeagent.agent import oneshot
from nodeagent.base.errors import ConfigError
from nodeagent.cli import bases, output, shell
from nodeagent.kernel import boot_files
from nodeagent.kernel.root import Root
from nodeagent.model.change import BootFiles, Outcome, Request
from nodeagent.policy.change import atboot
from nodeagent.render import byhand, documents

if TYPE_CHECKING:
    import argparse

    from nodeagent.model.snapshot import Snapshot


def bind(options: argparse.Namespace, request: Request) -> int:
    """Write what has functions bound at boot. :raises NodeagentError: if that cannot be."""
    root = shell.root_of(options)
    must_be_root(root, request)
    snapshot, first_line = _snapshot(options, root)
    found = atboot.plan(request, snapshot, boot_files.read(root))
    change = boot_files.changes(root, found.entries)
    if not request.dry_run:
        boot_files.put(root, change)
    done = Outcome.PLANNED if request.dry_run else Outcome.DONE
    results = tuple(
        each._replace(became=done) if each.became is Outcome.PLANNED else each for each in found.results
    )
    if options.output == output.TEXT:
        files = byhand.files(change, dry_run=request.dry_run)
        text = output.people("\n".join(filter(None, (byhand.text(results, ""), files))))
    else:
        answer = byhand.OutcomeAnswer(results, change.files, change.then)
        text = output.formed(options.output, documents.document(answer))
    output.answer(text, first_line)
    refused = any(each.became is Outcome.REFUSED for each in results)
    return output.WRONG if refused else output.FINE


def released(options: argparse.Namespace, request: Request) -> tuple[Request, BootFiles]:
    """Take back what the files say of what is named; the request then knows what a boot has bound."""
    root = shell.root_of(options)
    known = boot_files.read(root)
    if not known:
        return request, BootFiles()
    must_be_root(root, request)
    snapshot, _ = _snapshot(options, root)
    left = atboot.without(request, snapshot, known)
    change = boot_files.changes(root, left)
    if not request.dry_run:
        boot_files.put(root, change)
    taken = tuple(each.address for each in known if each not in left)
    return request._replace(at_boot=taken), change


def must_be_root(root: Root, request: Request) -> None:
    """:raises ConfigError: if this is somebody else who wants to change this host."""
    if root.is_host and os.geteuid() != 0 and not request.dry_run:
        raise ConfigError(f"nodeagent {request.asking} must be root", "run it with sudo")


def _snapshot(options: argparse.Namespace, root: Root) -> tuple[Snapshot, str]:
    basis, first_line = bases.present(options)
    fresh = anyio.run(oneshot.snapshot, root, basis.snapshot.spec, options.timeouts)
    return replace(fresh, spec=basis.snapshot.spec), first_line
