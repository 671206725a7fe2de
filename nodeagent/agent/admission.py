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

    def __init__(self, identity: str, pods: Pods | None = None, before: Pods | None = None) -> None:
        """``before``: whom the kubelet named when it was asked last, for whatever reason."""
        self.identity = identity
        self.given: frozenset[Possession] = frozenset()
        self.pods = pods  # None: the kubelet was not asked, or did not answer
        self.name = _new(before or {}, pods or {})

    def asks_again(self, pods: Pods | None, *, lately: bool) -> bool:
        """True if an Allocate at which the kubelet names these pods comes from this one.

        Where that is not clear, it does so if it was given something ``lately``.
        """
        if not self.given or self.pods is None or pods is None:
            return False
        found = asker(self.pods, pods, self.given)
        return found is Asker.SAME or (found is Asker.UNCLEAR and lately)

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


def _new(before: Pods, now: Pods) -> str | None:
    """The one name that was added, or came again; None if that is none or several."""
    came = [name for name, shown in now.items() if name not in before or not shown >= before[name]]
    return came[0] if len(came) == 1 else None
