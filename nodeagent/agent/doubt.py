# SPDX-License-Identifier: Apache-2.0
"""What an answer of the kubelet proves: for a while after its start it may not know all its pods.

The start is told by the birth of its socket, or by whoever saw a new one come. Times are those of the event
loop.
"""

from __future__ import annotations

from nodeagent.kubelet.podresources import Birth
from nodeagent.model.allocation import Knowledge


class Doubt:
    """Until when an answer proves presence only, and whether a better one has ever come."""

    def __init__(self, young_kubelet: float) -> None:
        """``young_kubelet``: seconds in which a new kubelet may not know its pods yet."""
        self._young_kubelet = young_kubelet
        self.until = 0.0
        self.kubelets = 0  # that were seen to come
        self.began = 0.0  # what was given before that was given by another kubelet
        self.early = False  # the one that answered last was not seen to come by then
        self._heard = 0  # how many had been seen to come at the last answer
        self._socket: tuple[int, int] | None = None
        self._trusted = False

    def kubelet_changed(self, now: float) -> None:
        """A new kubelet was seen to come."""
        self.kubelets += 1
        self.began, self.until = now, max(self.until, now + self._young_kubelet)

    def answered_by(self, birth: Birth | None, now: float) -> bool:
        """An answer came from the kubelet that was started then; True if it is another one than before.

        Each start is doubted once. It may answer before it is seen to come: the kubelet makes the socket by
        which it is seen when the container runtime is up (``initializeRuntimeDependentModules`` in
        pkg/kubelet/kubelet.go), and serves PodResources at once.
        """
        seen, self._heard = self.kubelets > self._heard, self.kubelets
        if birth is None or birth.socket == self._socket:
            return False
        self.early = self._socket is not None and not seen
        self._socket = birth.socket
        if self.early:
            self.began = now
        self.until = max(self.until, now + self._young_kubelet - birth.age)
        return True

    def covers(self, asked: float) -> bool:
        """True if an answer to a question of that time proves presence only."""
        return asked < self.until

    def knowledge(self, asked: float) -> Knowledge:
        """What is known after the answer to a question of that time."""
        self._trusted = self._trusted or not self.covers(asked)
        return Knowledge.COMPLETE if self._trusted else Knowledge.PARTIAL
