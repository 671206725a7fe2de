# SPDX-License-Identifier: Apache-2.0
"""A node that a pod was given is gone: with a driver that was let go of, or with something else?"""

from __future__ import annotations

import os
import shutil

import pytest

from tests.blackbox.boards import running, stays
from tests.blackbox.harness import Node, eventually
from tests.blackbox.test_behind import (
    ANSWERED,
    SERIAL,
    SINCE,
    STICKS,
    with_a_serial_card,
    with_ports,
)
from tests.blackbox.test_behind_midway import (
    bound,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
CARD = "0000:09:00.0"
TTY = "/dev/ttyOTHER"


@pytest.mark.slow
async def test_a_function_whose_node_a_pod_has_is_kept_while_the_node_is_away_for_a_moment(
    node: Node,
) -> None:
    """A device behind it is reset, and comes back under its name."""
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=0.1) as one,
    ):
        running(await kubelet.admit(one))
        await node.until_told(lambda told: "port-0" in told["holders"])
        await stays(kubelet, lambda: True, SINCE)
        node.configure(bound(SERIAL))
        await stays(kubelet, lambda: not drivers.writes, 1.0)
        os.unlink(node.host.path("/dev/ttyX"))
        shutil.rmtree(node.host.path("/sys/dev/char/188:9"))
        await stays(kubelet, lambda: not drivers.writes, SINCE)
        kubelet.delete(one)
        await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", ANSWERED)
