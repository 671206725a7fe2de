# SPDX-License-Identifier: Apache-2.0
"""The pods of a chaos run: they come, are admitted or refused, and go, gracefully or by force.

Half of the names come again and again, as those of a StatefulSet do. A pod that was refused is counted with
what it was told, and removed. By force only such pods are deleted whose devices the host shows as open:
nobody can know of a container that is only about to start.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.e2e import pods as pods_of
from tests.e2e.api import Answer, Api
from tests.e2e.pods import LINGER, PODS
from tests.e2e.watching import Watch

SLOTS = 6
SCHEDULED = 0.3  # of the pods go through the scheduler, which waits where something is not allocatable
LINGERING = 0.5  # of the pods end only when they are killed

_NAMES = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]|default/[a-z0-9-]+|[a-z.]+/[a-z]+")

Kind = Callable[[str, str], Any]  # name and last command of a pod → its manifest


@dataclass
class Tally:
    """What has happened to pods."""

    made: Counter[str] = field(default_factory=Counter)  # by kind
    admitted: Counter[str] = field(default_factory=Counter)  # by kind
    refused: Counter[str] = field(default_factory=Counter)  # by what they were told
    ended: Counter[str] = field(default_factory=Counter)  # by how


class Crowd:
    """Makes and deletes pods; ``pods`` is what the API server said of them last, by name."""

    def __init__(
        self,
        api: Api,
        watch: Watch,
        kinds: Mapping[str, Kind],
        random: Random,
        scheduled: float = SCHEDULED,
    ) -> None:
        self.pods: dict[str, Any] = {}
        self.tally = Tally()
        self._api, self._watch, self._kinds, self._random = api, watch, kinds, random
        self._decided: set[str] = set()
        self._scheduled = scheduled
        self._serial = 0

    def survey(self) -> None:
        """Count what was decided since the last time; remove what was refused."""
        self.pods = {pod["metadata"]["name"]: pod for pod in self._api.get(PODS)["items"]}
        for name, pod in tuple(self.pods.items()):
            if pod["metadata"]["uid"] not in self._decided:
                self._count(pod)
            if pod["status"]["phase"] in ("Failed", "Succeeded"):
                self._delete(name, 0)

    def _count(self, pod: Any) -> None:
        status, uid = pod["status"], pod["metadata"]["uid"]
        if status["phase"] == "Pending":
            return
        self._decided.add(uid)
        if "reason" in status:  # the containers of others have run
            text = status.get("message", "").removeprefix("Pod was rejected: ")
            self.tally.refused[_NAMES.sub("…", text) or status["reason"]] += 1
        else:
            self.tally.admitted[pod["metadata"]["labels"]["kind"]] += 1

    def come(self) -> None:
        """Make a pod, if there is room for one."""
        taken = {name.partition("-")[0] for name in self.pods}
        if free := [f"vm{slot}" for slot in range(SLOTS) if f"vm{slot}" not in taken]:
            slot = self._random.choice(free)
            self._serial += 1
            self._make(slot if slot < f"vm{SLOTS // 2}" else f"{slot}-{self._serial}")

    def _make(self, name: str) -> None:
        kind = self._random.choice(sorted(self._kinds))
        last = LINGER if self._random.random() < LINGERING else pods_of.STAY
        pod = self._kinds[kind](name, last)
        pod["metadata"]["labels"] = {"kind": kind}
        if self._random.random() >= self._scheduled:
            pod = pods_of.bound(pod)
        self.pods[name] = self._api.create(PODS, pod)
        self.tally.made[kind] += 1
        self._watch.note(f"{name} made ({kind})")

    def go(self) -> None:
        """Delete a pod with its grace period."""
        names = [name for name, pod in self.pods.items() if "deletionTimestamp" not in pod["metadata"]]
        if names:
            self._delete(self._random.choice(sorted(names)), None)

    def go_by_force(self) -> None:
        """Delete a pod by force, and put another one in its place, now and then at once."""
        open_ones = (
            name
            for name, pod in self.pods.items()
            if self._watch.opens_all(name, pod["metadata"]["uid"]) and name not in self._leaving()
        )
        if names := sorted(open_ones):
            name = self._random.choice(names)
            self._delete(name, 0)
            if self._random.random() < 0.5:
                self._make(name)

    def _leaving(self) -> set[str]:
        return {name for name, pod in self.pods.items() if "deletionTimestamp" in pod["metadata"]}

    def _delete(self, name: str, grace: int | None) -> None:
        try:
            self._api.delete(f"{PODS}/{name}", grace)
        except Answer as answer:
            if answer.status != 404:
                raise
        self._watch.note(f"{name} deleted" + (" by force" if grace == 0 else ""))
        if grace == 0:
            phase = self.pods.pop(name)["status"]["phase"]
            self.tally.ended["by force" if phase == "Running" else "after its end"] += 1
        else:
            self.pods[name]["metadata"].setdefault("deletionTimestamp", "now")
            self.tally.ended["gracefully"] += 1

    def leave(self) -> bool:
        """Have all pods deleted; True once there are none."""
        self.survey()
        for name in sorted(self.pods.keys() - self._leaving()):
            self._delete(name, None)
        return not self.pods
