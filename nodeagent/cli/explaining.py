# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain NAME``: finds what a name means on this node, and prints its explanation.

An address, a UUID, a path and the place of a rule are known by their form; other names are those of
resources, parents of mdevs, pods and rules. A resource has a dot before the slash, the namespace of a pod has
none. ``policy/explain`` makes the explanations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from nodeagent.agent import oneshot
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.cli import bases, daemon_client, output, shell
from nodeagent.model import plain
from nodeagent.model.host import Host
from nodeagent.model.ids import mdev_uuid, pci_address, usb_id
from nodeagent.model.status import Status
from nodeagent.policy import naming
from nodeagent.policy.change import bindings
from nodeagent.policy.explain import cards, devices, groups, passthrough, pods, resources, rules
from nodeagent.policy.explain.suggestions import suggestions
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.turn import Decision
from nodeagent.render import cards as card_rendering
from nodeagent.render import documents, holding
from nodeagent.render import explain as device_rendering
from nodeagent.render import resources as resource_rendering
from nodeagent.render import rules as rule_rendering

if TYPE_CHECKING:
    import argparse

_GROUP = re.compile(r"/dev/vfio/(?:noiommu-)?([0-9]{1,9})")
_DEVICE = re.compile(r"/dev/vfio/devices/(vfio\d+)")
_PORT = re.compile(r"[0-9]+-[0-9]+(\.[0-9]+)*")
_PLACE = re.compile(r".+\.ya?ml:[0-9]+")


class _Subject(NamedTuple):
    """The name that is explained, and the decision and status that explain it."""

    name: str
    options: argparse.Namespace
    decision: Decision
    status: Status | None  # of the daemon, if one answers


class _Answer(NamedTuple):
    """An explanation as text and as document, and a message for stderr."""

    text: str
    document: Any
    message: str = ""


def explain(options: argparse.Namespace) -> int:
    """Print the explanation of a name. :raises NodeagentError: if nothing has it."""
    name = " ".join(options.subject.split())
    address = pci_address(name)
    basis, first_line = bases.named(options) if address is None else bases.chosen(options, address)
    if options.host is None:
        snapshot = oneshot.with_memory(shell.root_of(options), basis.snapshot)
    else:
        snapshot = replace(basis.snapshot, machine_id="")  # this machine's id says nothing of a saved host
    answer = _explain(_with_status(name, options, turn.first(snapshot, basis.matched)))
    if options.output == output.TEXT:
        return output.answer(output.people(answer.text), first_line, answer.message)
    document = documents.document(answer.document)
    return output.answer(output.formed(options.output, document), first_line, answer.message)


def _with_status(name: str, options: argparse.Namespace, decision: Decision) -> _Subject:
    """Return the subject; its resources are also those that the daemon lists without any device."""
    status = None if options.host is not None else _read_status(options)
    if status is not None:
        with suppress(ValueError):
            listed = {**resources.remembered(status, decision), **decision.resources}
            decision = replace(decision, resources=listed)
    return _Subject(name, options, decision, status)


def _read_status(options: argparse.Namespace) -> Status | None:
    try:
        return plain.load(Status, daemon_client.status_or_none(options, shell.root_of(options)))
    except (TypeError, ValueError):
        return None


def _explain(subject: _Subject) -> _Answer:
    for has_form, explain_form in _FORMS:
        if has_form(subject.name):
            return explain_form(subject)
    return _explain_name(subject)


def _explain_device(subject: _Subject) -> _Answer:
    device_id = pci_address(subject.name) or mdev_uuid(subject.name) or subject.name
    explanation = devices.explain(device_id, subject.decision)
    if explanation is None:
        raise _describe_no_device(device_id, subject.options)
    return _Answer(device_rendering.text(explanation), explanation)


def _explain_port(subject: _Subject) -> _Answer:
    """Explain the USB device at a port."""
    usb = subject.decision.snapshot.host.usb.values()
    there = next((each.id for each in usb if each.name == subject.name), subject.name)
    return _explain_device(subject._replace(name=there))


def _describe_no_device(device_id: str, options: argparse.Namespace) -> NodeagentError:
    """Return the error on a device that is not there; the daemon may list it all the same."""
    listed = (
        None if options.host else daemon_client.unhealthy_device(options, shell.root_of(options), device_id)
    )
    if listed is not None:
        return NodeagentError(*listed)
    return NodeagentError(f"there is no device {device_id} on this host", "nodeagent scan lists all devices")


def _explain_path(subject: _Subject) -> _Answer:
    """Explain a device node: of a group, of a device, or of a rule."""
    path, host = subject.name, subject.decision.snapshot.host
    if named := _GROUP.fullmatch(path):
        return _explain_group(int(named[1]), subject)
    if named := _DEVICE.fullmatch(path):
        return _explain_device(subject._replace(name=_find_by_node(named[1], path, host)))
    names = resources.of_node(path, subject.decision)
    if not names:
        raise NodeagentError(
            f"no rule is for {path}",
            "a path is that of VFIO, such as /dev/vfio/12, or stands in a rule: nodeagent config",
        )
    answer = _find_resource(subject._replace(name=names[0]))
    others = f"{path} is given as {', '.join(names[1:])}, too" if names[1:] else ""
    return answer._replace(message=others) if answer is not None else _refuse_name(subject)


def _explain_group(number: int, subject: _Subject) -> _Answer:
    explanation = groups.explain(number, subject.decision)
    if explanation is None:
        raise NodeagentError(
            f"there is no IOMMU group {number} on this host",
            "nodeagent explain DEVICE names that of a device",
        )
    return _Answer(holding.group(explanation), explanation)


def _find_by_node(vfio_device: str, path: str, host: Host) -> str:
    found = next(
        (each.id for each in host.devices() if getattr(each, "vfio_device", None) == vfio_device), None
    )
    if found is None:
        raise NodeagentError(f"no device on this host has {path}", "nodeagent scan lists all devices")
    return found


def _find_rule(subject: _Subject) -> _Answer | None:
    explanation = rules.at(subject.name, subject.decision)
    if explanation is None:
        return None
    return _Answer(rule_rendering.text(explanation), explanation)


def _find_passthrough_rule(subject: _Subject) -> _Answer | None:
    """Explain a passthrough rule, by the evidence that a bind would go by."""
    snapshot = subject.decision.snapshot
    if (rule := passthrough.find_rule(subject.name, snapshot)) is None:
        return None
    if subject.options.host is None:
        units = bindings.units(passthrough.selected(rule, snapshot), snapshot.host)
        functions = [each.address for members in units for each in members]
        root = shell.root_of(subject.options)
        snapshot = anyio.run(oneshot.with_close_uses, root, snapshot, functions, subject.options.timeouts)
    explanation = passthrough.explain_rule(rule, snapshot)
    return _Answer(rule_rendering.text(explanation), explanation)


def _explain_rule(subject: _Subject) -> _Answer:
    answer = _find_rule(subject) or _find_passthrough_rule(subject)
    if answer is None:
        spec = subject.decision.snapshot.spec
        places = [rule.place for rule in (*spec.rules, *spec.passthrough) if rule.place]
        raise NodeagentError(
            f"no rule begins at {subject.name}",
            _hint_at(places, "rules begin at", "there are no rules"),
        )
    return answer


def _explain_name(subject: _Subject) -> _Answer:
    """Explain the resource, parent of mdevs, pod or rule of the KubeVirt CR of that name."""
    answer = _find_resource(subject) or _find_card(subject) or _find_pod(subject) or _find_rule(subject)
    if answer is not None:
        return answer
    domain, slash, _ = subject.name.partition("/")
    if slash and "." not in domain:
        raise _describe_no_pod(subject)
    return _refuse_name(subject)


def _find_resource(subject: _Subject) -> _Answer | None:
    explanation = resources.explain(subject.name, subject.decision, subject.status)
    return None if explanation is None else _Answer(resource_rendering.text(explanation), explanation)


def _find_card(subject: _Subject) -> _Answer | None:
    card = cards.explain(subject.name, subject.decision.snapshot)
    return None if card is None else _Answer(card_rendering.text(card), card)


def _find_pod(subject: _Subject) -> _Answer | None:
    explanation = pods.explain(subject.name, subject.decision)
    return None if explanation is None else _Answer(holding.pod(explanation), explanation)


def _describe_no_pod(subject: _Subject) -> NodeagentError:
    snapshot = subject.decision.snapshot
    known = pods.known(snapshot)
    if not snapshot.allocations.answered:
        what = f"who has devices is not known here, so neither is what {subject.name} has"
        return NodeagentError(what, "only a running daemon asks the kubelet: nodeagent status")
    what = f"{subject.name} is neither a resource nor a pod that has a device of this node"
    return NodeagentError(
        what, _hint_at(known, "pods that have devices:", "no pod has a device", subject.name)
    )


def _refuse_name(subject: _Subject) -> _Answer:
    """Refuse a name that nothing has.

    :raises NodeagentError: always, with a suggestion or with the nearest names.
    """
    name, decision = subject.name, subject.decision
    possible = suggestions(name, decision.snapshot)
    if possible:
        more = f" (and {len(possible) - 1} more)" if possible[1:] else ""
        raise NodeagentError(f"{name} is not offered here, but {possible[0].what}{more}", possible[0].missing)
    if "/" not in name:
        raise ConfigError(
            f"{name} is no PCI address, UUID, resource, /dev path, pod or rule",
            _hint_at([*decision.resources, *decision.snapshot.host.mdev_parents], "known here:", "", name),
        )
    raise NodeagentError(
        f"nothing here is offered as {name}, and no rule, alias or card would make it",
        _hint_at(tuple(decision.resources), "resources here:", "there are no resources here", name),
    )


def _hint_at(known: Sequence[str], before: str, without: str, like: str = "") -> str:
    """Return a hint with at most three of the known names, the nearest first."""
    if not known:
        return without or "nodeagent scan lists what is there"
    return naming.nearest(like, known, before)


def _is_device(name: str) -> bool:
    return any(of_kind(name) is not None for of_kind in (pci_address, mdev_uuid, usb_id))


_FORMS: tuple[tuple[Callable[[str], object], Callable[[_Subject], _Answer]], ...] = (
    (_is_device, _explain_device),
    (_PORT.fullmatch, _explain_port),
    (lambda name: name.startswith("/dev/"), _explain_path),
    (_PLACE.fullmatch, _explain_rule),
)
"""Form of a name → what explains it; all other names are looked for."""
