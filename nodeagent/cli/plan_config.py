# SPDX-License-Identifier: Apache-2.0
"""``nodeagent plan --config FILE``: prints what would change if FILE were config.yaml. Changes nothing.

As in the daemon, ``conf.d``, environment and flags override the file, and the daemon's KubeVirt CR and Node
labels count. The command compares the Decision in force with the one after the change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from nodeagent import config
from nodeagent.agent import oneshot
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.base.files import STDIN
from nodeagent.cli import args, daemon_client, output, plan
from nodeagent.model.kubevirt import ClusterConfig
from nodeagent.model.nodes import fits
from nodeagent.policy import merge
from nodeagent.policy.change import plan as changes
from nodeagent.policy.offer import comparison, turn
from nodeagent.policy.offer.comparison import Counted, DeviceChange, ResourceChange

if TYPE_CHECKING:
    import argparse

    from nodeagent.kernel.root import Root
    from nodeagent.model.change import Plan
    from nodeagent.model.host import Host
    from nodeagent.model.snapshot import Snapshot
    from nodeagent.model.spec import Spec

SAME = "the kubelet sees no change"


class SettingChange(NamedTuple):
    """A setting whose value differs; ``note`` describes unexpected effects of the change."""

    key: str
    before: Any
    after: Any
    note: str


class DryRun(NamedTuple):
    """The changes that another configuration file would cause. ``pods``: the pods whose devices would be
    listed differently.

    ``plan``: the changes of the host with the new file.
    """

    file: str
    settings: tuple[SettingChange, ...]
    resources: tuple[ResourceChange, ...]
    devices: tuple[DeviceChange, ...]
    pods: Mapping[str, tuple[str, ...]]
    plan: plan.PlanAnswer


def run(options: argparse.Namespace) -> int:
    """Print what would change.

    :raises ConfigError: if the file is invalid; the error has all mistakes.
    """
    if options.config == options.host == STDIN:
        raise ConfigError("--config and --host both name standard input", "give one of them as a file")
    basis, first_line = daemon_client.read_named_basis(options)
    root = args.find_root(options)
    settings = config.load_candidate(options.config, root.prefix, basis.values)
    cr, labels = _cluster_config(options, root, basis.snapshot.spec)
    spec = merge.merge(settings.configuration, cr, labels)
    snapshot, unseen = _with_nodes(basis.snapshot, spec, options)
    before = turn.decide_first(snapshot, basis.matched)
    after = turn.decide_next(before, replace(before.snapshot, spec=spec))
    snapshot, unknown = plan.complete_snapshot(after.snapshot, options)
    planned, differs = changes.plan(snapshot), comparison.compare(before, after)
    found = DryRun(
        options.config,
        tuple(_changed_settings(basis.values, settings.values)),
        differs.resources,
        differs.devices,
        differs.pods,
        plan.as_document(planned, spec.mdevs.manage),
    )
    messages = (first_line, *settings.warnings, unseen, unknown)
    return output.emit(options, "DryRun", found, lambda: text(found, planned), *messages)


def _with_nodes(snapshot: Snapshot, spec: Spec, options: argparse.Namespace) -> tuple[Snapshot, str]:
    """Add the device nodes and CDI files of the rules; also return a message if a saved host lacks some."""
    if not args.is_saved(options):
        root = args.find_root(options)
        seen = anyio.run(oneshot.with_nodes, root, snapshot, spec.node_paths)
        return anyio.run(oneshot.with_specs, root, seen, spec, options.timeouts), ""
    missing = ", ".join(_unsaved(spec, snapshot.host))
    message = f"the saved host does not show whether these files exist; they count as missing: {missing}"
    return snapshot, message if missing else ""


def _unsaved(spec: Spec, host: Host) -> list[str]:
    """The nodes and CDI files that a saved host may lack, because no rule named them at that time."""
    kinds = {file.kind for file in host.cdi.values()}
    paths = [path for path in spec.node_paths if not any(fits(each, path) for each in host.nodes)]
    return [*paths, *(f"a CDI file of {kind}" for kind in sorted(spec.cdi_kinds - kinds))]


def _cluster_config(options: argparse.Namespace, root: Root, spec: Spec) -> ClusterConfig:
    """The KubeVirt CR and labels that the daemon has saved, as far as they are in force.

    :raises NodeagentError: if the daemon uses a KubeVirt CR that its record does not have.
    """
    if args.is_saved(options):
        return ClusterConfig()
    from nodeagent.agent.cluster import state  # here: a saved host needs no reader of a CR
    from nodeagent.base.state import CLUSTER

    status = daemon_client.find_status(options)
    if status is None:
        return ClusterConfig()
    cr_name = status.get("cluster", {}).get("kubevirt", "")
    known = state.SECTION.peek(root.prefix).config
    if cr_name and known.kubevirt is None:
        raise NodeagentError(
            f"the daemon uses the KubeVirt CR {cr_name}, and {CLUSTER.path(root.prefix)} does not contain it",
            "only root may read that: try again with sudo" if os.geteuid() else "see nodeagent status",
        )
    in_force = known.labels is not None and tuple(known.labels.items()) == spec.labels
    return ClusterConfig(known.kubevirt if cr_name else None, known.labels if in_force else None)


def _changed_settings(
    before: Iterable[config.Value], after: Iterable[config.Value]
) -> Iterator[SettingChange]:
    old = {value.key: value.value for value in before}
    for value in after:
        if value.key in old and old[value.key] != value.value:
            note = config.BY_KEY[value.key].note("", "")
            yield SettingChange(value.key, old[value.key], value.value, note)


def text(found: DryRun, planned: Plan) -> str:
    """A section for each kind of difference, then the plan."""
    parts = (
        ("settings", [f"{each.key} ({each.note})" if each.note else each.key for each in found.settings]),
        ("resources", [_resource(*change) for change in found.resources]),
        ("devices", _devices(found.devices)),
        (
            "pods (each keeps its devices until it ends)",
            [f"{pod}  uses {', '.join(ids)}" for pod, ids in found.pods.items()],
        ),
    )
    lines = [f"if {found.file} were config.yaml", ""]
    for heading, shown in parts:
        lines += [heading, *(f"  {line}" for line in shown), ""] if shown else []
    if not found.resources and not found.devices:
        lines += [SAME, ""]
    return "\n".join([*lines, plan.text(planned, found.plan.manage)])


def _resource(name: str, before: Counted | None, after: Counted | None) -> str:
    if before is None:
        return f"+ {name}: {_count(after)}"
    if after is None:
        return f"- {name}: {_count(before)}"
    return f"  {name}: {_count(before)} -> {_count(after)}"


def _count(counted: Counted | None) -> str:
    if counted is None:
        return "none"
    return f"{counted.devices} device{'s' * (counted.devices != 1)}, {counted.healthy} Healthy"


def _devices(changes: Iterable[DeviceChange]) -> list[str]:
    """One line for each device; for many devices with the same change, only the first ones."""
    alike: dict[str, list[str]] = {}
    for change in changes:
        alike.setdefault("; ".join(_words(change)), []).append(change.id)
    return [line for words, ids in alike.items() for line in _lines(words, ids)]


def _lines(words: str, ids: list[str]) -> Iterator[str]:
    yield from (f"{each}  {words}" for each in ids[: plan.SHOWN])
    if len(ids) > plan.SHOWN:
        yield f"... and {len(ids) - plan.SHOWN} more with the same change"


def _words(change: DeviceChange) -> Iterator[str]:
    before, after = change.before, change.after
    if after is None:
        yield f"no longer listed{f' as {before.resource}' if before else ''}"
        return
    if before is None:
        yield f"newly listed as {after.resource}"
    elif before.resource != after.resource:
        yield f"{before.resource} -> {after.resource}"
    else:
        yield after.resource
    if after.reason is not None:
        yield f"Unhealthy: {after.reason.message}"
    elif before is not None and before.reason is not None:
        yield "Healthy"
