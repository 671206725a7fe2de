# SPDX-License-Identifier: Apache-2.0
"""The components that serve what the daemon tells of itself, at the two sockets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nodeagent.agent.core import Core
from nodeagent.agent.tell import serve
from nodeagent.agent.tell.basis import Basis
from nodeagent.agent.tell.status import Teller
from nodeagent.base.supervise import Component, Task


def of(core: Core, teller: Teller) -> Sequence[Component]:
    """One component for each socket; both at the path that the settings say at the start."""
    path = core.root.path(core.settings.get().status.socket)
    return (
        Task("status socket", partial(serve.serve_status, path, teller.status)),
        Task("snapshot socket", partial(serve.serve_snapshot, path, partial(_basis, core))),
    )


def _basis(core: Core) -> Basis:
    """What the newest Decision was made from; its memory goes with it."""
    decision, settings = core.offering.one_turn(), core.settings.get()
    return Basis(decision.snapshot, decision.matched, settings.values, settings.warnings)
