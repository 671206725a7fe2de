# SPDX-License-Identifier: Apache-2.0
"""The cluster side, wired; imported only where the settings ask for it."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.agent.cluster.condition import ConditionKeeper
from nodeagent.agent.cluster.events import Events
from nodeagent.agent.cluster.offered import Offered
from nodeagent.agent.cluster.side import ClusterSide
from nodeagent.agent.cluster.stale import StaleResources
from nodeagent.agent.core import Core
from nodeagent.base.supervise import Component


def components(core: Core) -> Sequence[Component]:
    """The component, sharing the core of the daemon, and its guests."""
    offered = Offered(core)
    guests = (Events(core), ConditionKeeper(core), StaleResources(core, offered))
    return (ClusterSide(core, offered, guests),)
