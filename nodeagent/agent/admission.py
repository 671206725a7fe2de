# SPDX-License-Identifier: Apache-2.0
"""The pod that is being admitted: what it was given, and whom the kubelet named at its last Allocate.

Requests name no pod. Whether the next Allocate comes from the same one is told by ``policy.offer.admission``,
from two answers of the kubelet; without them it counts as another pod's.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping

from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint
from nodeagent.model.allocation import Holder, Pods, Possession, unnamed
from nodeagent.model.ids import ResourceName
from nodeagent.policy.offer.admission import Asker, asker, owners_of

NOTHING = Checkpoint()


class Admission:
    """One pod's admission, from its first Allocate on; ``identity`` stands for the pod until it is named."""

    def __init__(
        self,
        identity: str,
        pods: Pods | None = None,
        before: Pods | None = None,
        begun: Collection[str] | None = None,
        done: Collection[str] = (),
    ) -> None:
        """``before``: whom the kubelet named when it was asked last, for whatever reason.

        ``begun``: the uids of the pods that it had begun to start by now; None: not known. ``done``: whose
        admission was over before this one, as the other one's ``done`` tells.
        """
        self.identity = identity
        self.given: frozenset[Possession] = frozenset()
        self.pods = pods  # None: the kubelet was not asked, or did not answer
        came = _came(before or {}, pods or {})
        self.names = came or _waiting(pods or {}, done)  # of whom one is the pod
        self.name = _only(self.names)
        self.came = _only(came)  # the pod, if it is new for certain: a container of an old one may ask, too
        self._shown: frozenset[Possession] = frozenset()  # by the pod of that name, at any time
        self._begun = begun

    @property
    def askers(self) -> frozenset[str]:
        """The names of whom one asks: of all whom the kubelet names, if nobody came who could."""
        return self.names or frozenset(self.pods or ())

    def asks_again(self, pods: Pods | None, *, lately: bool) -> bool:
        """True if an Allocate at which the kubelet names these pods comes from this one.

        Where that is not clear, it does so if it was given something ``lately``.
        """
        if not self.given or self.pods is None or pods is None:
            return False
        found = asker(self.pods, pods, self.given)
        return found is Asker.SAME or (found is Asker.UNCLEAR and lately)

    def begun(self, checkpoint: Checkpoint) -> bool:
        """True if the kubelet has begun to start the pod since: its admission is over.

        Who asks from then on is another one, also if no name is new: a container that is started, and has not
        got what it asks for (``GetDeviceRunContainerOptions`` in pkg/kubelet/cm/devicemanager/manager.go).
        """
        if self._begun is None or not self.given:
            return False
        return self.given <= checkpoint.begun(self._begun)

    def done(self, pods: Pods | None, checkpoint: Checkpoint) -> frozenset[str]:
        """Of whom the kubelet named at this one's last Allocate, those whose admission was over by the next.

        One follows the other. But a container that is started asks at any time: then the pod that was being
        admitted may be at it yet, which is one of those that could ask. It is not where one shows what was
        given, or has begun to start with it.
        """
        named = frozenset(self.pods or ())
        known = self.begun(checkpoint) or self.names.issubset(owners_of(pods or {}, self.given))
        return named if known else named - self.names

    def entered(self, checkpoint: Checkpoint) -> frozenset[Possession]:
        """What pods have whose admission is over; one that has ended may be entered with the same."""
        if self._begun is None or checkpoint.admitted is None:
            return checkpoint.settled
        return checkpoint.begun(self._begun)

    def whoever(self) -> Admission:
        """This one, without the names of whom it might be: nobody came who could ask."""
        self.names, self.name, self.came = frozenset(), None, None
        return self

    def named(self, pods: Pods) -> None:
        """This one asks again, and the kubelet names these."""
        self.pods = pods

    def ended_by(self, pods: Pods) -> bool:
        """True if the kubelet names a pod that has come since: it admits one after the other.

        One of the same name shows less than the pod has shown before.
        """
        if self.pods is None:
            return False
        shown = pods.get(self.name or "", frozenset())
        if self.name in pods and not shown >= self._shown:
            return True
        self._shown |= shown
        return not pods.keys() <= self.pods.keys()

    def owned(self, asked: Collection[str]) -> frozenset[str]:
        """The ids that are surely this pod's: what it asks for and got, and what it shows beside that."""
        pods = self.pods or {}
        shown = self.given.union(*(pods[owner] for owner in owners_of(pods, self.given)))
        return frozenset(asked).union(device_id for _, device_id in shown)

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


class Admissions:
    """The admission under way, or the last one. Times are those of the event loop, in seconds."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self.now = Admission("")
        self.ours: Mapping[Possession, float] = {}  # given to anybody since the kubelet was started, and when
        self.settles: float | None = None  # when what is left of its groups is open no more; None: it is not
        self._given_at = 0.0
        self._named: Pods | None = None  # whom the kubelet named last
        self._numbers = itertools.count(1)

    @property
    def settling(self) -> frozenset[str]:
        """What was given to the pod that is being admitted: it may take more of the groups."""
        return frozenset[str]() if self.settles is None else frozenset(each for _, each in self.now.given)

    @property
    def pods(self) -> frozenset[str]:
        """The names of whom the kubelet named last."""
        return frozenset(self._named or ())

    def asker(self, pods: Pods | None, checkpoint: Checkpoint = NOTHING) -> Admission:
        """Whose Allocate it is at which the kubelet names these pods: the admission under way, or a new one.

        ``pods`` None: the kubelet was not asked, or did not answer. Its ``checkpoint`` tells what is over.
        """
        again = self.now.asks_again(pods, lately=self.settles is not None)
        if pods is not None and again and not self.now.begun(checkpoint):
            self.now.named(pods)
            return self.now
        identity, done = f"admission {next(self._numbers)}", self.now.done(pods, checkpoint)
        other = Admission(identity, pods, self._named, checkpoint.admitted, done)
        return other.whoever() if again else other

    def begin(self, admission: Admission, until: float) -> bool:
        """This pod is being admitted: its groups are open to it until then, at the longest.

        What has settled stays so. True if another admission is over with it.
        """
        other = admission is not self.now
        if other or self.settles is not None:
            self.now, self.settles = admission, until
        return other

    def new_kubelet(self) -> None:
        """A new kubelet has come: it admits nobody whom the last one was admitting."""
        self.settles, self.ours = None, {}

    def gave(self, possessions: Iterable[Possession], now: float) -> None:
        """An Allocate has given these to the pod."""
        possessions = frozenset(possessions)
        self.now.gave(possessions)
        self.ours = {**self.ours, **dict.fromkeys(possessions, now)}
        self._given_at = now
        self._named = self.now.pods or self._named

    def named(self, pods: Pods, *, inside: bool = False) -> bool:
        """The kubelet names these; True if the admission under way is over, as they show.

        ``inside`` an Allocate, or a preference, whose pod is new until it has got something.
        """
        if not inside:
            self._named = pods
        over = self.settles is not None and self.now.ended_by(pods)
        if over:
            self.settles = None
        return over

    def settle(self, now: float, entered: Collection[Possession] | None) -> None:
        """If its time is over by now, what it got has settled.

        Unless by its checkpoint the kubelet may still be at it: it enters what a container got when it has
        asked for all of it, and may wait for another plugin. ``entered`` has what is over; None: not known.
        """
        if self.settles is None or self.settles > now:
            return
        latest = self._given_at + self._timeouts.foreign_allocate
        over = entered is None or self.now.given <= set(entered) or now > latest
        self.settles = None if over else now + self._timeouts.foreign_allocate_poll


def _came(before: Pods, now: Pods) -> frozenset[str]:
    """The names that were added, or came again."""
    return frozenset(name for name, shown in now.items() if name not in before or not shown >= before[name])


def _waiting(now: Pods, done: Collection[str]) -> frozenset[str]:
    """The names that show nothing yet, and those that are not ``done``, whatever they show.

    Such a one may wait for another plugin since before it was asked for.
    """
    return frozenset(name for name, shown in now.items() if not shown or name not in done)


def _only(names: frozenset[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None
