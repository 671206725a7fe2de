# SPDX-License-Identifier: Apache-2.0
"""Collects the Status: everything that is reported, read from the parts of the daemon at one moment.

``app`` calls this module for HTTP, for systemd's status line, for Events and for the condition of the Node.
``policy.diagnose`` finds the problems. This module also collects the Snapshot and the settings in force. All
of these values are immutable, so that a thread may write them to a socket.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent import __version__
from nodeagent.agent.config_loop import ConfigLoop
from nodeagent.agent.core import Core, KubeletSide
from nodeagent.agent.reporting.basis import Basis
from nodeagent.agent.reporting.problem_log import ProblemLog
from nodeagent.base import process
from nodeagent.model.problem import of_settings
from nodeagent.model.status import (
    ANSWERS,
    NO_CHANGES,
    RUNNING_AGAIN,
    ClusterStatus,
    HolderStatus,
    HttpStatus,
    KubeletStatus,
    ProcessStatus,
    Status,
)
from nodeagent.policy import diagnose

if TYPE_CHECKING:  # few nodes load these
    from nodeagent.agent.changing.loop import ChangeLoop
    from nodeagent.agent.cluster.follow import ClusterFollower
    from nodeagent.agent.dra.feature import DraDriver


def collect(
    core: Core,
    kubelet: KubeletSide,
    config: ConfigLoop,
    problem_log: ProblemLog,
    http: HttpStatus,
    changes: ChangeLoop | None,
    cluster: ClusterFollower | None,
    dra: DraDriver | None,
    uptime: float,
) -> Status:
    """The present Status. ``changes`` and ``cluster`` are None until they are loaded; ``uptime``: seconds."""
    allocations, watcher = core.snapshots.now.allocations, core.watcher
    status = Status(
        version=__version__,
        pid=os.getpid(),
        uptime_seconds=round(uptime, 1),
        root=core.root.prefix,
        kubelet=KubeletStatus(
            kubelet.directory.kubelet_path,
            kubelet.present,
            core.usage.error or ANSWERS,
            allocations.complete,
        ),
        host=core.observer.status,
        resources=kubelet.plugins.status,
        changes=NO_CHANGES if changes is None else changes.status,
        holders={
            each: HolderStatus(str(pod), pod.resource, pod.claim) for each, pod in allocations.holders.items()
        },
        subsystems={name: text or RUNNING_AGAIN for name, text in core.supervisor.failures.items()},
        problems=(),
        process=ProcessStatus(*process.read_numbers()),
        configuration=config.status,
        http=http,
        allocating=kubelet.plugins.allocating,
        groups=core.offering.groups,
        cluster=ClusterStatus() if cluster is None else cluster.status,
        pci_ids=core.names.bundled,
        findings=(
            *diagnose.find_unwatched(watcher.unwatched, has_instance=watcher.has_instance),
            *kubelet.cdi.problems,
            *(() if dra is None else dra.find_problems(kubelet_present=kubelet.present)),
            *problem_log.problems,
            *of_settings(core.settings.get().warnings),
        ),
    )
    return status.with_findings(diagnose.problems(status))


def in_force(core: Core) -> Basis:
    """The Snapshot, matches and settings of the newest Decision.

    Parts that matter only for changes of the host come from the newest Snapshot: these parts cause no new
    Decision.
    """
    decision, settings, now = core.offering.one_turn(), core.settings.get(), core.snapshots.now
    snapshot = replace(
        decision.snapshot,
        ledger=now.ledger,
        open=now.open,
        failures=now.failures,
        machine_id=now.machine_id,
    )
    return Basis(snapshot, decision.matched, settings.values, settings.warnings)
