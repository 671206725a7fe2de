# SPDX-License-Identifier: Apache-2.0
"""``nodeagent plan --config FILE``: what would change if the file were config.yaml. Changes nothing.

As for the daemon, ``conf.d``, environment and flags go over the file, and what the cluster said last counts.
What is compared is the Decision in force with the one that a daemon would take next.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import anyio

from nodeagent import config
from nodeagent.agent import oneshot
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.base.files import STDIN
from nodeagent.cli import bases, daemon_client, output, planning, shell
from nodeagent.model.kubevirt import ClusterWishes
from nodeagent.model.nodes import fits
from nodeagent.policy import merge
from nodeagent.policy.change import plan as changes
from nodeagent.policy.offer import comparison, turn
from nodeagent.render import documents, dryrun

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from nodeagent.agent.tell.basis import Basis
    from nodeagent.kernel.root import Root
    from nodeagent.model.host import Host
    from nodeagent.model.spec import Spec


class _Tried(NamedTuple):
    """The basis with all that the file asks about, and what comes of the file."""

    before: Basis
    settings: config.Settings
    spec: Spec


def show(options: argparse.Namespace) -> int:
    """Say what would change.

    :raises ConfigError: if the file cannot be used; all that is wrong with it is said.
    """
    if options.config == options.host == STDIN:
        raise ConfigError("--config and --host both name standard input", "give one of them as a file")
    tried, messages = _tried(options)
    before = turn.first(tried.before.snapshot, tried.before.matched)
    after = turn.following(before, replace(before.snapshot, spec=tried.spec))
    snapshot, unknown = planning.complete(after.snapshot, options)
    told = dryrun.DryRun(
        options.config,
        _differing(tried.before.values, tried.settings.values),
        comparison.compared(before, after),
        changes.plan(snapshot),
        tried.spec.mdevs.manage,
    )
    if options.output == output.TEXT:
        text = output.people(dryrun.text(told))
    else:
        text = output.formed(options.output, documents.document(dryrun.answer(told)))
    return output.answer(text, *messages, unknown)


def _tried(options: argparse.Namespace) -> tuple[_Tried, tuple[str, ...]]:
    root = shell.root_of(options)
    basis, first_line = bases.named(options)
    settings = config.load_candidate(options.config, root.prefix, basis.values)
    wishes = ClusterWishes() if options.host is not None else _heard(options, root, basis.snapshot.spec)
    spec = merge.merge(settings.configuration, wishes.kubevirt, wishes.labels)
    paths, unseen = spec.node_paths, ""
    if options.host is None:
        seen = anyio.run(oneshot.with_nodes, root, basis.snapshot, paths)
        seen = anyio.run(oneshot.with_specs, root, seen, spec, options.timeouts)
        basis = basis._replace(snapshot=seen)
    elif missing := _untold(spec, basis.snapshot.host):
        unseen = f"the saved host does not tell whether there is {', '.join(missing)}: it counts as missing"
    return _Tried(basis, settings, spec), (first_line, *settings.warnings, unseen)


def _untold(spec: Spec, host: Host) -> list[str]:
    """What a saved host may lack because nobody asked for it then."""
    kinds = {file.kind for file in host.cdi.values()}
    paths = [path for path in spec.node_paths if not any(fits(each, path) for each in host.nodes)]
    return [*paths, *(f"a CDI file of {kind}" for kind in sorted(spec.cdi_kinds - kinds))]


def _heard(options: argparse.Namespace, root: Root, spec: Spec) -> ClusterWishes:
    """What the daemon knows of the cluster, by its record, as far as that is in force; nothing without one.

    :raises NodeagentError: if it goes by a KubeVirt CR that its record does not have.
    """
    from nodeagent.agent.cluster import state  # here: a saved host needs no reader of a CR

    status = daemon_client.status_or_none(options, root)
    if status is None:
        return ClusterWishes()
    cr_name = status.get("cluster", {}).get("kubevirt", "")
    known = state.FILE.peek(root.path(state.PATH)).wishes
    if cr_name and known.kubevirt is None:
        raise NodeagentError(
            f"the daemon goes by the KubeVirt CR {cr_name}, and {state.PATH} does not tell what it says",
            "only root may read that: try again with sudo" if os.geteuid() else "see nodeagent status",
        )
    told = known.labels is not None and tuple(known.labels.items()) == spec.labels
    return ClusterWishes(known.kubevirt if cr_name else None, known.labels if told else None)


def _differing(
    before: Iterable[config.Value], after: Iterable[config.Value]
) -> tuple[tuple[config.Value, config.Value], ...]:
    old = {value.key: value for value in before}
    pairs = ((old.get(value.key), value) for value in after)
    return tuple((one, other) for one, other in pairs if one is not None and one.value != other.value)
