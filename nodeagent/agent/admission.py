# SPDX-License-Identifier: Apache-2.0
"""The pod that is being admitted: what it was given, and whom the kubelet named at its last Allocate.

Requests name no pod. Whether the next Allocate comes from the same one is told by ``policy.offer.admission``,
from two answers of the kubelet; without them it counts as another pod's.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.model.allocation import Holder, Pods, Possession, unnamed
from nodeagent.model.ids import ResourceName
from nodeagent.policy.offer.admission import Asker, asker, owners_of


class Admission:
    """One pod's admission, from its first Allocate on; ``identity`` stands for the pod until it is named."""

    def __init__(self, identity: str, pods: Pods | None = None) -> None:
        self.identity = identity
        self.given: frozenset[Possession] = frozenset()
        self.pods = pods  # None: the kubelet was not asked, or did not answer

    def asks_again(self, pods: Pods | None) -> bool:
        """True if an Allocate at which the kubelet names these pods comes from this one."""
        if not self.given or self.pods is None or pods is None:
            return False
        return asker(self.pods, pods, self.given) is not Asker.OTHER

    def named(self, pods: Pods) -> None:
        """This one asks again, and the kubelet names these."""
        self.pods = pods

    def ended_by(self, pods: Pods) -> bool:
        """True if the kubelet names a pod that has come since: it admits one after the other."""
        return self.pods is not None and not pods.keys() <= self.pods.keys()

    def gave(self, possessions: Iterable[Possession]) -> None:
        """An Allocate has given these to the pod."""
        self.given = self.given.union(possessions)

    def holder(self, resource: ResourceName, numa: int | None) -> Holder:
        """The pod as the holder of a device of this resource."""
        owners = owners_of(self.pods or {}, self.given)
        if len(owners) != 1:
            return unnamed(resource, numa, self.identity)
        namespace, name = owners[0].split("/", 1)
        return Holder(namespace, name, resource, numa)
