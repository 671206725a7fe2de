# SPDX-License-Identifier: Apache-2.0
"""A node that a pod was given is gone: with a driver that was let go of, or with something else?"""

from __future__ import annotations

import os
import shutil

import pytest

from tests.blackbox.boards import running, stays
from tests.blackbox.harness import Node, eventually, pod
from tests.blackbox.plugs import ONE, plugged, stick
from tests.blackbox.test_behind import (
    ANSWERED,
    SERIAL,
    SINCE,
    STICKS,
    with_a_serial_card,
    with_ports,
)
from tests.blackbox.test_behind_midway import bound
from tests.facts import names
from tests.sim import devnodes

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


@pytest.mark.slow
async def test_a_driver_change_waits_while_a_pod_has_a_node_that_is_gone(node: Node) -> None:
    """It may be of any driver. The status names the pod, and the change is made when that has ended."""
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=9)
    devnodes.add(node.host, TTY, (188, 10))
    async with (
        with_a_serial_card(node, STICKS, CARD) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=0.1, first=TTY) as one,
    ):
        running(await kubelet.admit(one))
        await node.until_told(lambda told: "ns/one" in str(told["holders"]))
        os.unlink(node.host.path(TTY))
        node.configure(bound(CARD))
        status = await node.until_told(lambda told: bool(told["changes"]["waiting"]))
        names(str(status["changes"]["waiting"]), "ns/one", TTY)
        await stays(kubelet, lambda: not drivers.writes, SINCE)
        kubelet.delete(one)
        await eventually(lambda: drivers.driver(CARD) == "vfio-pci", ANSWERED)


@pytest.mark.slow
async def test_a_driver_change_waits_while_a_pod_has_a_usb_device_that_was_plugged_in_again(
    node: Node,
) -> None:
    """The node that the pod was given is gone: the device has another number now."""
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=9)
    plugged(node, "1-1", stick("A"), 4)
    async with with_a_serial_card(node, STICKS, CARD) as drivers, node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(ONE, 1)
        one = await kubelet.admit(pod("one", {ONE: 1}))
        running(one)
        await node.until_told(lambda told: "ns/one" in str(told["holders"]))
        node.usb.unplug("1-1")
        plugged(node, "1-1", stick("A"), 7)
        node.configure(bound(CARD))
        status = await node.until_told(lambda told: bool(told["changes"]["waiting"]))
        names(str(status["changes"]["waiting"]), "ns/one")
        await stays(kubelet, lambda: not drivers.writes, SINCE)
        kubelet.delete(one)
        await eventually(lambda: drivers.driver(CARD) == "vfio-pci", ANSWERED)
