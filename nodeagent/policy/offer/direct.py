# SPDX-License-Identifier: Apache-2.0
"""Rules whose Devices are no HostDevices, one row each: nodes, CDI names. Pure.

Nothing of them is in an IOMMU group. A new one is a rule in ``model.desired``, a module that makes its
resource, and one more row here. That module is loaded when there is such a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from nodeagent.model.allocation import Grant
from nodeagent.model.desired import CdiRule, DirectRule
from nodeagent.model.host import Host
from nodeagent.model.nodes import DevNode
from nodeagent.model.resource import Resource
from nodeagent.model.snapshot import Snapshot


class Direct(NamedTuple):
    """What policy knows of one kind of such rules.

    ``takes``: what people are told that it takes; ``names``: whether it gives away the node of a path.
    ``sources`` are the paths and addresses to look at again before devices are given, ``nodes`` has
    those of each id; ``touched`` tells whether a resource may differ between two Hosts.
    """

    resource: Callable[[Any, Snapshot], Resource]
    takes: Callable[[Any, Snapshot], tuple[str, ...]]
    grant: Callable[[Any, Iterable[str], Snapshot], Grant]
    sources: Callable[[Any, Iterable[str], Snapshot], tuple[str, ...]]
    nodes: Callable[[Any, Snapshot], Mapping[str, Sequence[DevNode]]]
    touched: Callable[[Any, Host, Host], bool]
    names: Callable[[Any, str, Snapshot], bool]


def of(rule: DirectRule) -> Direct:
    """The row for a rule."""
    return _cdi() if isinstance(rule, CdiRule) else _nodes()


@cache
def _nodes() -> Direct:
    from nodeagent.policy.offer import shares as own

    return Direct(own.resource, own.takes, own.grant, own.sources, own.nodes, own.touched, own.names)


@cache
def _cdi() -> Direct:
    from nodeagent.policy.offer import cdi_names as own

    return Direct(own.resource, own.takes, own.grant, own.sources, own.nodes, own.touched, own.names)
