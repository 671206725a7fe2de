# SPDX-License-Identifier: Apache-2.0
"""The report of readiness: which judges there are, in the order in which their lines stand. Pure."""

from __future__ import annotations

from nodeagent.model.readiness import Readiness
from nodeagent.policy.ready import isolation, kubelet, machine, modules, node
from nodeagent.policy.ready.lines import Evidence

_JUDGES = (
    machine.lines,
    modules.lines,
    isolation.lines,
    kubelet.lines,
    kubelet.kubevirt,
    node.permissions,
    node.limits,
    node.versions,
    node.daemon,
)


def report(evidence: Evidence) -> Readiness:
    """All lines."""
    return Readiness(tuple(line for judge in _JUDGES for line in judge(evidence)))
