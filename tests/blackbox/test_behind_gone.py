# SPDX-License-Identifier: Apache-2.0
"""A node that a pod was given is gone: with a driver that was let go of, or with something else?"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator

import pytest

from nodeagent.sim import devnodes
from nodeagent.sim.drivers import SimulatedDrivers, Wrote
from nodeagent.sim.kubelet.standin import Kubelet
from tests.blackbox import foreign
from tests.blackbox.boards import running, stays
from tests.blackbox.harness import PATIENCE, Node, eventually, pod
from tests.blackbox.plugs import ONE, plugged, stick
from tests.blackbox.test_behind import (
    ANSWERED,
    HEAD,
    PORT,
    SERIAL,
    SINCE,
    STICKS,
    with_a_serial_card,
    with_ports,
)
from tests.blackbox.test_behind_midway import (
    AGAIN,
    LETS_GO,
    bound,
    given_while_it_lets_go,
    with_late_nodes,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
CARD = "0000:09:00.0"
TTY = "/dev/ttyOTHER"


@contextlib.asynccontextmanager
async def with_a_card_that_was_bound(node: Node) -> AsyncIterator[tuple[SimulatedDrivers, Kubelet]]:
    """It has gone back to its driver since."""
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=9)
    async with with_a_serial_card(node, STICKS, CARD) as drivers, node.kubelet() as kubelet, node.daemon():
        await until_bound(node, drivers)
        node.configure(HEAD + STICKS)
        await eventually(lambda: drivers.driver(CARD) == "nvidia", PATIENCE)
        await stays(kubelet, lambda: drivers.driver(CARD) == "nvidia", 1.0)
        yield drivers, kubelet


async def until_bound(node: Node, drivers: SimulatedDrivers) -> None:
    node.configure(bound(CARD))
    await eventually(lambda: drivers.driver(CARD) == "vfio-pci", PATIENCE)


@pytest.mark.slow
async def test_a_card_is_bound_though_a_stick_of_a_pod_is_plugged_in_anew(node: Node) -> None:
    async with with_a_card_that_was_bound(node) as (drivers, kubelet):
        plugged(node, "1-1", stick("A"), 4)
        await kubelet.until_listed(ONE, 1)
        running(await kubelet.admit(pod("one", {ONE: 1})))
        await node.until_told(lambda told: bool(told["holders"]))
        await stays(kubelet, lambda: True, 1.0)
        node.host.usb.unplug("1-1")
        plugged(node, "1-1", stick("A"), 7)
        await until_bound(node, drivers)


@pytest.mark.slow
async def test_a_card_is_bound_though_a_node_of_something_else_has_gone(node: Node) -> None:
    async with (
        with_a_card_that_was_bound(node) as (drivers, kubelet),
        with_ports(kubelet, takes=0.1, first=TTY) as one,
    ):
        devnodes.add(node.host, TTY, (188, 10))
        running(await kubelet.admit(one))
        await node.until_told(lambda told: "port-0" in told["holders"])
        await stays(kubelet, lambda: True, 1.0)
        os.unlink(node.host.path(TTY))
        await until_bound(node, drivers)


@pytest.mark.slow
async def test_a_new_daemon_binds_a_card_though_a_stick_of_a_pod_was_plugged_in_anew_before(
    node: Node,
) -> None:
    """It has never seen the node that the pod was given, and neither was that there when the card let go."""
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=9)
    async with with_a_serial_card(node, STICKS, CARD) as drivers, node.kubelet() as kubelet:
        async with node.daemon():
            plugged(node, "1-1", stick("A"), 4)
            await kubelet.until_listed(ONE, 1)
            running(await kubelet.admit(pod("one", {ONE: 1})))
            await node.until_told(lambda told: bool(told["holders"]))
            node.host.usb.unplug("1-1")
            plugged(node, "1-1", stick("A"), 7)
            await stays(kubelet, lambda: True, 1.0)
        async with node.daemon():
            await node.until_told(lambda told: bool(told["holders"]))
            await until_bound(node, drivers)


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
async def test_what_a_pod_was_given_while_vfio_had_the_function_is_no_others_when_that_comes_back(
    node: Node,
) -> None:
    """The node was on its way to a pod that has ended; and then a driver lets go of it, with another pod."""
    async with with_late_nodes(node, 0.3, 0.5) as (drivers, kubelet, one):
        node.configure(bound(SERIAL))
        await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", PATIENCE)
        former = await kubelet.admit(pod("former", {PORT: 1}))
        await node.until_told(lambda told: "port-0" in told["holders"])
        node.configure(HEAD + STICKS)
        await eventually(lambda: drivers.driver(SERIAL) == "serial", PATIENCE)
        await stays(kubelet, lambda: True, 1.0)
        kubelet.delete(former)
        kubelet.delete(await kubelet.admit(pod("hint", {foreign.NIC: 1})))
        await node.until_told(lambda told: "port-0" not in told["holders"])
        await stays(kubelet, lambda: True, SINCE)
        before = len(drivers.writes)
        drivers.faults.set(f"unbind:{SERIAL}", LETS_GO)
        node.configure(bound(SERIAL))
        await given_while_it_lets_go(drivers, kubelet, one, before)
        await stays(kubelet, lambda: drivers.driver(SERIAL) == "serial", AGAIN)
        assert Wrote("probe", SERIAL) not in drivers.writes[before:]


@pytest.mark.slow
async def test_what_its_own_driver_did_not_take_at_once_gets_it_again_while_a_pod_waits_for_it(
    node: Node,
) -> None:
    async with with_late_nodes(node, 0.3, 0.0) as (drivers, kubelet, one):
        drivers.faults.set(f"unbind:{SERIAL}", LETS_GO)
        drivers.faults.set(f"reprobe:{SERIAL}", "lost")
        node.configure(bound(SERIAL))
        await given_while_it_lets_go(drivers, kubelet, one)
        drivers.faults.clear(f"reprobe:{SERIAL}")
        await eventually(lambda: drivers.driver(SERIAL) == "serial", PATIENCE)
        await stays(kubelet, lambda: drivers.driver(SERIAL) == "serial", AGAIN)
        kubelet.delete(one)
        await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", PATIENCE)
