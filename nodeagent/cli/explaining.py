# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain NAME``: what a name means here, and which story is told of it; not the stories.

A device goes by its address or UUID, or by its own node; then come paths, places of rules, resources, parents
of mdevs and pods. What a resource and a pod are called differs: no namespace has a dot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.agent import oneshot
from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.cli import bases, daemon_client, output, shell
from nodeagent.model import plain
from nodeagent.model.host import Host
from nodeagent.model.ids import mdev_uuid, pci_address, usb_id
from nodeagent.model.status import Status
from nodeagent.policy import naming
from nodeagent.policy.explain import cards, devices, groups, pods, resources, rules
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


class _Asked(NamedTuple):
    """What was asked for, and what all is decided from."""

    name: str
    options: argparse.Namespace
    decision: Decision
    status: Status | None  # of the daemon, if one answers


class _Story(NamedTuple):
    """What is told: as text, as a record, and what to say of it beside that."""

    text: str
    record: Any
    message: str = ""


def explain(options: argparse.Namespace) -> int:
    """Tell the story of what is called so. :raises NodeagentError: if nothing is."""
    name = " ".join(options.subject.split())
    address = pci_address(name)
    basis, first_line = bases.named(options) if address is None else bases.chosen(options, address)
    if options.host is None:
        snapshot = oneshot.with_memory(shell.root_of(options), basis.snapshot)
    else:
        snapshot = replace(basis.snapshot, machine_id="")  # this machine's id says nothing of a saved host
    story = _story(_with_status(name, options, turn.first(snapshot, basis.matched)))
    if options.output == output.TEXT:
        return output.answer(output.people(story.text), first_line, story.message)
    document = documents.document(story.record)
    return output.answer(output.formed(options.output, document), first_line, story.message)


def _with_status(name: str, options: argparse.Namespace, decision: Decision) -> _Asked:
    """The daemon lists what it has served, also when nothing of it is left."""
    status = None if options.host is not None else _status(options)
    if status is not None:
        with suppress(ValueError):
            listed = {**resources.remembered(status, decision), **decision.resources}
            decision = replace(decision, resources=listed)
    return _Asked(name, options, decision, status)


def _status(options: argparse.Namespace) -> Status | None:
    try:
        return plain.load(Status, daemon_client.status_or_none(options, shell.root_of(options)))
    except (TypeError, ValueError):
        return None


def _story(asked: _Asked) -> _Story:
    for is_one, tell in _MEANINGS:
        if is_one(asked.name):
            return tell(asked)
    return _named(asked)


def _device(asked: _Asked) -> _Story:
    device_id = pci_address(asked.name) or mdev_uuid(asked.name) or asked.name
    explanation = devices.explain(device_id, asked.decision)
    if explanation is None:
        raise _no_device(device_id, asked.options)
    return _Story(device_rendering.text(explanation), explanation)


def _port(asked: _Asked) -> _Story:
    """The USB device that sits there."""
    usb = asked.decision.snapshot.host.usb.values()
    there = next((each.id for each in usb if each.name == asked.name), asked.name)
    return _device(asked._replace(name=there))


def _no_device(device_id: str, options: argparse.Namespace) -> NodeagentError:
    """Why nothing can be said of it; the daemon may list it all the same."""
    listed = (
        None if options.host else daemon_client.unhealthy_device(options, shell.root_of(options), device_id)
    )
    if listed is not None:
        return NodeagentError(*listed)
    return NodeagentError(f"there is no device {device_id} on this host", "nodeagent scan lists all devices")


def _path(asked: _Asked) -> _Story:
    """A node of VFIO is that of a group or of a device; others are shared out by rules."""
    path, host = asked.name, asked.decision.snapshot.host
    if named := _GROUP.fullmatch(path):
        return _group(int(named[1]), asked)
    if named := _DEVICE.fullmatch(path):
        return _device(asked._replace(name=_with_node(named[1], path, host)))
    names = resources.of_node(path, asked.decision)
    if not names:
        raise NodeagentError(
            f"no rule is for {path}",
            "a path is that of VFIO, such as /dev/vfio/12, or stands in a rule: nodeagent config",
        )
    story = _resource(asked._replace(name=names[0]))
    others = f"{path} is given as {', '.join(names[1:])}, too" if names[1:] else ""
    return story._replace(message=others) if story is not None else _unknown_resource(asked)


def _group(number: int, asked: _Asked) -> _Story:
    explanation = groups.explain(number, asked.decision)
    if explanation is None:
        raise NodeagentError(
            f"there is no IOMMU group {number} on this host",
            "nodeagent explain DEVICE names that of a device",
        )
    return _Story(holding.group(explanation), explanation)


def _with_node(vfio_device: str, path: str, host: Host) -> str:
    found = next(
        (each.id for each in host.devices() if getattr(each, "vfio_device", None) == vfio_device), None
    )
    if found is None:
        raise NodeagentError(f"no device on this host has {path}", "nodeagent scan lists all devices")
    return found


def _rule_at(asked: _Asked) -> _Story | None:
    explanation = rules.at(asked.name, asked.decision)
    if explanation is None:
        return None
    return _Story(rule_rendering.text(explanation), explanation)


def _rule(asked: _Asked) -> _Story:
    story = _rule_at(asked)
    if story is None:
        places = [rule.place for rule in asked.decision.snapshot.desired.rules if rule.place]
        raise NodeagentError(
            f"no rule of a resource begins at {asked.name}",
            _few(places, "rules begin at", "there are no rules"),
        )
    return story


def _named(asked: _Asked) -> _Story:
    """A resource, a parent of mdevs, a pod or a rule of the KubeVirt CR, whichever there is."""
    story = _resource(asked) or _parent(asked) or _pod(asked) or _rule_at(asked)
    if story is not None:
        return story
    domain, slash, _ = asked.name.partition("/")
    if slash and "." not in domain:
        raise _no_pod(asked)
    return _unknown_resource(asked)


def _resource(asked: _Asked) -> _Story | None:
    explanation = resources.explain(asked.name, asked.decision, asked.status)
    return None if explanation is None else _Story(resource_rendering.text(explanation), explanation)


def _parent(asked: _Asked) -> _Story | None:
    card = cards.explain(asked.name, asked.decision.snapshot)
    return None if card is None else _Story(card_rendering.text(card), card)


def _pod(asked: _Asked) -> _Story | None:
    explanation = pods.explain(asked.name, asked.decision)
    return None if explanation is None else _Story(holding.pod(explanation), explanation)


def _no_pod(asked: _Asked) -> NodeagentError:
    snapshot = asked.decision.snapshot
    known = pods.known(snapshot)
    if not snapshot.allocations.answered:
        what = f"who has devices is not known here, so neither is what {asked.name} has"
        return NodeagentError(what, "only a running daemon asks the kubelet: nodeagent status")
    what = f"{asked.name} is neither a resource nor a pod that has a device of this node"
    return NodeagentError(what, _few(known, "pods that have devices:", "no pod has a device", asked.name))


def _unknown_resource(asked: _Asked) -> _Story:
    """:raises NodeagentError: always, with what could become one, or with the names that are like it."""
    name, decision = asked.name, asked.decision
    possible = suggestions(name, decision.snapshot)
    if possible:
        more = f" (and {len(possible) - 1} more)" if possible[1:] else ""
        raise NodeagentError(f"{name} is not offered here, but {possible[0].what}{more}", possible[0].missing)
    if "/" not in name:
        raise ConfigError(
            f"{name} is no PCI address, UUID, resource, /dev path, pod or rule",
            _few([*decision.resources, *decision.snapshot.host.mdev_parents], "known here:", "", name),
        )
    raise NodeagentError(
        f"nothing here is offered as {name}, and no rule, alias or card would make it",
        _few(tuple(decision.resources), "resources here:", "there are no resources here", name),
    )


def _few(known: Sequence[str], before: str, without: str, like: str = "") -> str:
    """At most three of the words, the most like what was asked for, and how many there are."""
    if not known:
        return without or "nodeagent scan lists what is there"
    return naming.nearest(like, known, before)


def _is_device(name: str) -> bool:
    return any(of_kind(name) is not None for of_kind in (pci_address, mdev_uuid, usb_id))


_MEANINGS: tuple[tuple[Callable[[str], object], Callable[[_Asked], _Story]], ...] = (
    (_is_device, _device),
    (_PORT.fullmatch, _port),
    (lambda name: name.startswith("/dev/"), _path),
    (_PLACE.fullmatch, _rule),
)
"""What a name means by its form alone; all others are looked for."""
