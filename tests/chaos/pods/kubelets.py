# SPDX-License-Identifier: Apache-2.0
"""The kubelet of a run: it goes and comes, and for a while it does not know the pods of the API server.

Pods wait until it is there. It goes when nothing is being admitted, unless that takes too long. Static pods
are read from files, so it knows them at once.
"""

from __future__ import annotations

import contextlib
import math
import time

import anyio

from nodeagent.sim.kubelet.server import FakeKubelet, KubeletStopped
from nodeagent.sim.kubelet.state import Pod
from tests.chaos.pods.script import Broken, Script

ADMITTING = 25.0  # seconds that a restart waits for what is being admitted
EMPTY = 0.36  # seconds in which a new kubelet names nobody
UNNAMED = 1.3  # seconds until it has heard of the pods of the API server
_UNNAMED = "pod-resources-unnamed"


class Kubelets:
    """All lives of the kubelet of one node; ``static`` are the keys of static pods."""

    def __init__(self, kubelet: FakeKubelet, script: Script) -> None:
        self.kubelet = kubelet
        self.static: set[str] = set()
        self.admitting = 0
        self._script = script
        self._there = True
        self._lives = 0
        self._all_named = 0.0

    @property
    def settled(self) -> bool:
        """True if it is there, knows all pods, and admits none."""
        return self._there and not self.admitting and time.monotonic() >= self._all_named

    def has(self, pod: Pod) -> bool:
        """True unless another has its name by now, or nobody."""
        return self.kubelet.state.pods.get(pod.key) is pod

    def forget(self, pod: Pod) -> None:
        """The pod is no more; another with its name stays."""
        if self.has(pod):
            self.kubelet.delete(pod)

    async def admit(self, pod: Pod) -> bool:
        """Admit or reject it; False if one with that name is there, or the kubelet has gone meanwhile."""
        await self.kubelet.until(lambda: self._there, math.inf)
        if pod.key in self.kubelet.state.pods:
            return False
        self.admitting += 1
        try:
            await self.kubelet.admit(pod)
        except KubeletStopped:
            return False
        finally:
            self.admitting -= 1
            self.kubelet.state.changed()
        return True

    async def start_again(self, pod: Pod) -> None:
        """The container of a pod has crashed. :raises Broken: if the pod does not get again what it has."""
        if not (self._there and self.has(pod)):
            return
        with contextlib.suppress(KubeletStopped):
            await self.kubelet.admit(pod, again=True)
            if pod.message:
                raise Broken(f"{pod.key} could not start again: {pod.message}")

    async def down(self) -> bool:
        """It ends; False if it has ended before."""
        if not self._there:
            return False
        self._there = False
        with contextlib.suppress(TimeoutError):
            await self.kubelet.until(lambda: not self.admitting, ADMITTING)
        self._script.note(f"the kubelet ends, {self.admitting} pods are being admitted")
        await self.kubelet.stop()
        return True

    async def up(self, unnamed: float = UNNAMED) -> None:
        """Another begins; it hears of the pods of the API server after so many seconds."""
        self._script.note(f"the kubelet begins, and knows its pods in {unnamed} s")
        self._lives += 1
        self._all_named = time.monotonic() + unnamed
        faults, pods = self.kubelet.faults, self.kubelet.state.pods.keys()
        faults.set("pod-resources-empty", EMPTY)
        faults.set(_UNNAMED, unnamed)
        if self.static & pods:
            faults.set(_UNNAMED, frozenset(pods - self.static))
            self._script.meanwhile(self._hear, unnamed, self._lives)
        await self.kubelet.start()
        self._there = True
        self.kubelet.state.changed()

    async def _hear(self, seconds: float, life: int) -> None:
        """The pods from before are named; not if that was an earlier kubelet."""
        await anyio.sleep(seconds)
        if life == self._lives:
            self.kubelet.faults.clear(_UNNAMED)
