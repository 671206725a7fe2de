# SPDX-License-Identifier: Apache-2.0
"""Rules whose Devices are no HostDevices, one row each: nodes. Nothing of them is in an IOMMU group. Pure.

A new one is a rule in ``model.desired``, a module that makes its resource, and one more row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from nodeagent.model.allocation import Grant
from nodeagent.model.desired import DirectRule, NodeRule
from nodeagent.model.host import Host
from nodeagent.model.resource import Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import shares


class Direct(NamedTuple):
    """What policy knows of one kind of such rules.

    ``takes``: what people are told that it takes; ``names``: whether it gives away the node of a path.
    ``sources`` are the paths and addresses to look at again before devices are given; ``touched`` tells
    whether a resource may differ between two Hosts.
    """

    resource: Callable[[Any, Snapshot], Resource]
    takes: Callable[[Any, Snapshot], tuple[str, ...]]
    lists: Callable[[Any, str, Snapshot], bool]
    grant: Callable[[Any, Iterable[str], Snapshot], Grant]
    sources: Callable[[Any, Iterable[str], Snapshot], tuple[str, ...]]
    touched: Callable[[Any, Host, Host], bool]
    names: Callable[[Any, str, Snapshot], bool]


_ROWS: Final[Mapping[type, Direct]] = MappingProxyType(
    {
        NodeRule: Direct(
            shares.resource,
            shares.takes,
            shares.lists,
            shares.grant,
            shares.sources,
            shares.touched,
            shares.names,
        )
    }
)


def of(rule: DirectRule) -> Direct:
    """The row for a rule."""
    return _ROWS[type(rule)]
