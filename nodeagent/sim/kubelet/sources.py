# SPDX-License-Identifier: Apache-2.0
"""The stand-in kubelet's sources of pods: which pods it knows, and whether it has read them all.

After a start the kubelet knows its static pods first, and those of the API server only when that has
answered: a second later, or minutes later where it is away. Until then it names the others to nobody, keeps
what they have, and frees nothing at all (measured on 1.36.3; ``sourcesReady`` in
pkg/kubelet/cm/devicemanager/manager.go). Faults: ``pod-resources-empty`` (seconds after a start in which no
pod is named), ``pod-resources-unnamed`` (seconds after a start in which the pods from before it are not, or
the keys, ``namespace/name``, of pods that are not named as long as the fault is set).
"""

from __future__ import annotations

from collections.abc import Collection

import anyio

from nodeagent.sim.kubelet.state import Pod, State


def active(state: State) -> list[Pod]:
    """All pods of the node but those that were rejected."""
    return [pod for pod in state.pods.values() if pod.phase != "Failed"]


def named(state: State) -> list[Pod]:
    """The active pods of the sources that have been read."""
    if _lasts(state, state.faults.get("pod-resources-empty")):
        return []
    unnamed = _unnamed(state)
    return [pod for pod in active(state) if pod.key not in unnamed]


def all_read(state: State) -> bool:
    """True unless some source has not been read."""
    unnamed = state.faults.get("pod-resources-unnamed")
    waits = bool(unnamed) if isinstance(unnamed, Collection) else _lasts(state, unnamed)
    return not (waits or _lasts(state, state.faults.get("pod-resources-empty")))


def _unnamed(state: State) -> Collection[str]:
    setting = state.faults.get("pod-resources-unnamed")
    if isinstance(setting, Collection):
        return setting
    if not _lasts(state, setting):
        return ()
    return {pod.key for pod in state.pods.values() if pod.uid in state.life.inherited}


def _lasts(state: State, seconds: float | None) -> bool:
    """True if the kubelet was started less than that many seconds ago."""
    return seconds is not None and anyio.current_time() - state.life.started < seconds
