# SPDX-License-Identifier: Apache-2.0
"""Who asks? Whether an Allocate comes from the same pod as the ones before it, as PodResources shows. Pure.

No request names its pod. But the kubelet admits one pod at a time, lists it from right before its admission
on, and at a pod's second Allocate shows what the first one gave (measured on 1.36.3; ``HandlePodAdditions``
in pkg/kubelet/kubelet.go adds a pod right before it admits it). Plain init containers are never listed, and
a name may come again, so names and devices are both compared.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from nodeagent.model.allocation import Pods, Possession


class Asker(Enum):
    """Who asks, compared with whom the last Allocates were for."""

    SAME = "the same pod"
    OTHER = "another pod"
    UNCLEAR = "the same pod, unless one without devices came again under its old name"


def asker(before: Pods, now: Pods, given: Collection[Possession]) -> Asker:
    """Who asks now: ``before`` was named at the last Allocate, and ``given`` by all of this admission.

    Nobody is added while an Allocate is open, so a new name means that the admission is over. A pod that
    shows other devices than before has got them in an admission of its own, or is a new one of that name.
    """
    if not now.keys() <= before.keys():
        return Asker.OTHER
    owners = owners_of(now, given)
    changed = [name for name, shown in now.items() if shown != before[name] or name in owners]
    if len(changed) > 1 or any(not now[name] >= before[name] for name in changed):
        return Asker.OTHER
    return Asker.SAME if owners else Asker.UNCLEAR


def owners_of(pods: Pods, given: Collection[Possession]) -> tuple[str, ...]:
    """The pods that show some of what was given; nobody shows what only a plain init container has."""
    return tuple(name for name, shown in pods.items() if not shown.isdisjoint(given))
