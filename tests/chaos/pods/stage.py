# SPDX-License-Identifier: Apache-2.0
"""All that a trouble may touch: the node, its kubelet and its daemon, the pods, and the script."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from tests.chaos.pods.board import Board
from tests.chaos.pods.crowd import Crowd
from tests.chaos.pods.daemons import Daemons
from tests.chaos.pods.kubelets import Kubelets
from tests.chaos.pods.script import Script


class Stage(NamedTuple):
    """One node, with all that goes on on it."""

    board: Board
    kubelets: Kubelets
    daemons: Daemons
    crowd: Crowd
    script: Script

    def pod_comes(self, wants: Mapping[str, int], *, name: str = "", uid: str = "") -> None:
        """A pod comes, beside all else."""
        self.script.meanwhile(partial(self.crowd.come, wants, name=name, uid=uid))
