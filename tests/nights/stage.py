# SPDX-License-Identifier: Apache-2.0
"""All that a trouble may touch: the node, its kubelet and its daemon, the pods, and the script."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from tests.nights.board import Board
from tests.nights.crowd import Crowd
from tests.nights.daemons import Daemons
from tests.nights.kubelets import Kubelets
from tests.nights.script import Script


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
