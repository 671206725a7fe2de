# SPDX-License-Identifier: Apache-2.0
"""Which pod asks: the one of the Allocates before, or another? Told from two answers of PodResources. Pure.

No request names its pod. But the kubelet admits one pod at a time, lists it from right before its admission
on, and at a pod's second Allocate lists what the first one allocated (measured on 1.36.3;
``HandlePodAdditions`` in pkg/kubelet/kubelet.go adds a pod right before it admits it). Plain init containers
are never listed, and a name may come again, so names and devices are both compared.
"""

from __future__ import annotations

from collections.abc import Collection

from nodeagent.model.allocation import Pods, Possession


def is_other_pod(before: Pods, now: Pods, allocated: Collection[Possession]) -> bool:
    """True if another pod asks ``now`` than ``before``, when this admission was ``allocated`` these.

    No pod is added while an Allocate is open, so a new name means that the admission is over. A pod that
    lists other devices than before was allocated them in its own admission, or is a new one of that name.
    """
    if not now.keys() <= before.keys():
        return True
    owners = owners_of(now, allocated)
    changed = [name for name, listed in now.items() if listed != before[name] or name in owners]
    return len(changed) > 1 or any(not now[name] >= before[name] for name in changed)


def owners_of(pods: Pods, allocated: Collection[Possession]) -> tuple[str, ...]:
    """The pods that list some of these devices; none lists those of a plain init container."""
    return tuple(name for name, listed in pods.items() if not listed.isdisjoint(allocated))
