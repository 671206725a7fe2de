# SPDX-License-Identifier: Apache-2.0
"""What a rule for device nodes makes a Device of: all that it names, or each node that a pattern fits. Pure.

With ``perPath`` the first path leads. What goes with a leader is known where both are nodes of one device;
else the first fits the first, the second the second, and so on. A node leads once, by the first rule.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nodeagent.model.desired import NodePath, NodeRule
from nodeagent.model.host import Host
from nodeagent.model.nodes import DevNode, fits, is_pattern
from nodeagent.model.snapshot import Snapshot

_ID_LIMIT = 54  # characters of a name in an id: with a mark, or the number of a share, at most 63
_DIGITS = re.compile(r"(\d+)")


class NodeUnit(NamedTuple):
    """What one container gets: nodes, each by what names it; ``missing``: what is not there and has to be."""

    name: str
    parts: tuple[tuple[DevNode, NodePath], ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[DevNode, ...]:
        """Its nodes."""
        return tuple(node for node, _ in self.parts)


def units(rule: NodeRule, snapshot: Snapshot) -> tuple[NodeUnit, ...]:
    """The units of a rule: one, or with ``perPath`` as many as there are nodes that lead."""
    if rule.per_path:
        return _led(rule, snapshot)
    first = rule.entries[0].path
    name = first.removeprefix("/dev/").strip("/").replace("/", "_")
    parts = [(node, entry) for entry in rule.entries for node in matches(entry.path, snapshot.host)]
    missing = [entry.path for entry in rule.entries if not entry.optional and not _any(entry, parts)]
    return (NodeUnit(_short(name) if rule.paths else name, tuple(parts), tuple(missing)),)


def matches(wanted: str, host: Host) -> list[DevNode]:
    """The nodes that a path or a pattern means, each once, in the order in which people count."""
    if not is_pattern(wanted):
        node = host.dev_nodes.get(wanted)
        plain = DevNode(wanted) if wanted in host.nodes else None  # of a host that was saved without more
        return [each for each in (node or plain,) if each is not None]
    found: dict[str, DevNode] = {}
    for node in host.dev_nodes.values():
        if fits(node.path, wanted) and (node.real not in found or not node.target):
            found[node.real] = node
    return sorted(found.values(), key=lambda node: _counted(node.path))


def leaders(rule: NodeRule, snapshot: Snapshot) -> list[DevNode]:
    """The nodes that lead a Device of this rule: those that no rule before it has."""
    taken: set[str] = set()
    for earlier in snapshot.desired.rules:
        if earlier.name == rule.name:
            break
        if isinstance(earlier, NodeRule) and earlier.per_path:
            taken |= {node.real for node in matches(earlier.entries[0].path, snapshot.host)}
    found = matches(rule.entries[0].path, snapshot.host)
    return [node for node in found if node.real not in taken]


def _led(rule: NodeRule, snapshot: Snapshot) -> tuple[NodeUnit, ...]:
    first, *others = rule.entries
    leading = leaders(rule, snapshot)
    with_each = [(entry, _followers(entry, leading, snapshot.host)) for entry in others]
    return tuple(
        _unit(node, first, [(entry, found[number]) for entry, found in with_each])
        for number, node in enumerate(leading)
    )


def _unit(leader: DevNode, first: NodePath, others: Sequence[tuple[NodePath, Sequence[DevNode]]]) -> NodeUnit:
    parts = [(leader, first), *((node, entry) for entry, nodes in others for node in nodes)]
    missing = [entry.path for entry, nodes in others if not nodes and not entry.optional]
    name = leader.alias or leader.path.removeprefix("/dev/")
    return NodeUnit(_short(name.replace("/", "_")), tuple(parts), tuple(missing))


def _followers(entry: NodePath, leading: Sequence[DevNode], host: Host) -> list[list[DevNode]]:
    """For each leader what goes with it of one entry."""
    found = matches(entry.path, host)
    if is_pattern(entry.path) and any(_together(each, node) for each in leading for node in found):
        return [[node for node in found if _together(each, node)] for each in leading]
    most = entry.limit or (1 if is_pattern(entry.path) else len(leading))
    seats = [node for node in found for _ in range(most)]
    return [seats[number : number + 1] for number in range(len(leading))]


def _together(one: DevNode, other: DevNode) -> bool:
    return one.parent is not None and one.parent == other.parent


def _any(entry: NodePath, parts: Iterable[tuple[DevNode, NodePath]]) -> bool:
    return any(other == entry for _, other in parts)


def _counted(path: str) -> tuple[tuple[int, str], ...]:
    """video2 before video10."""
    pieces = _DIGITS.split(path)
    return tuple((int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces)


def _short(name: str) -> str:
    """A name in an id: what no label may have is replaced, and a long one is cut, with a mark of all."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-") or "nodes"
    if len(plain) <= _ID_LIMIT:
        return plain
    return f"{plain[: _ID_LIMIT - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
