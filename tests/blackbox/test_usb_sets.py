# SPDX-License-Identifier: Apache-2.0
"""Sets of USB devices while what they are made of changes: no part of one is ever in two pods."""

from __future__ import annotations

import os
import signal

import anyio
import pytest

from tests.blackbox.boards import named, running, stays
from tests.blackbox.harness import PATIENCE, STATE, Node, health, pod, until_health
from tests.blackbox.plugs import (
    BUNDLE,
    SET,
    all_seen,
    configured,
    key,
    lent,
    opened,
    places,
    plugged,
    stick,
)
from tests.facts import names

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
HEAD = "46f4:0001-A"
KEYS, KEY = "{name: example.com/key, usb: [{vendors: ['1234']}]}", "example.com/key"
LACKING = "{name: example.com/set, bundle: true, usb: [{vendors: ['46f4']}, {products: ['0604']}]}"
LOOSE = "{name: example.com/set, usb: [{vendors: ['46f4']}]}"


async def test_the_device_that_a_set_lacks_is_named(node: Node) -> None:
    node.usb.plug("1-1", stick("A"), 14)
    configured(node, LACKING)
    for subject in (SET, "46f4:0001-A"):
        done = await node.command("explain", subject)
        names(done.stdout, "0604")


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False], ids=["is open", "may be open"])
async def test_a_set_is_what_it_is_when_its_wait_is_over(node: Node, seen: bool) -> None:
    """A pod is replaced, and the old container has the set yet; meanwhile a key comes that goes before."""
    configured(node, BUNDLE)
    if seen:
        all_seen(node)
    path = plugged(node, "1-1", stick("A"), 14)
    plugged(node, "1-2", key("B1"), 15)
    plugged(node, "1-3", stick("A2"), 16)
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(SET, 1)
        old = await kubelet.admit(pod("old", {SET: 1}))
        running(old)
        await named(node, HEAD, old)
        descriptor = opened(node, path) if seen else None
        kubelet.delete(old)
        new = pod("new", {SET: 1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, new)
            await kubelet.until(lambda: bool(kubelet.state.allocating), PATIENCE)
            await stays(kubelet, lambda: new.phase == "Pending", 1.0)
            plugged(node, "2-1", key("B0"), 2)
            await kubelet.until(lambda: len(health(kubelet, SET)) == 2, PATIENCE)
            if descriptor is not None:
                descriptor.unlink()
        running(new)
        await named(node, HEAD, new)
        assert lent(node)[HEAD] == places(new)
        two = await kubelet.admit(pod("two", {SET: 1}))
        running(two)
        assert places(new).isdisjoint(places(two))


@pytest.mark.slow
async def test_a_device_becomes_a_set_while_it_is_waited_for(node: Node) -> None:
    configured(node, LOOSE)
    plugged(node, "1-1", stick("A"), 14)
    plugged(node, "1-2", key("B1"), 15)
    async with node.kubelet() as kubelet, node.daemon() as daemon:
        await kubelet.until_listed(SET, 1)
        one = pod("one", {SET: 1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, one)  # a daemon that has just come does not know who had it
            await kubelet.until(lambda: bool(kubelet.state.allocating), PATIENCE)
            configured(node, BUNDLE)
            await daemon.logged("config-reloaded")
            assert one.phase == "Pending"
        running(one)
        assert lent(node)[HEAD] == places(one)
        await named(node, HEAD, one)
        configured(node, LOOSE, KEYS)
        await kubelet.until_listed(KEY, 1)
        two = await kubelet.admit(pod("two", {KEY: 1}))
        assert two.phase == "Failed" or places(one).isdisjoint(places(two))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["is gone", "is torn"])
async def test_a_part_of_a_set_is_its_pods_though_the_record(node: Node, how: str) -> None:
    configured(node, BUNDLE)
    plugged(node, "1-1", stick("A"), 14)
    plugged(node, "1-2", key("B1"), 15)
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await kubelet.until_listed(SET, 1)
            one = await kubelet.admit(pod("one", {SET: 1}))
            running(one)
            await named(node, HEAD, one)
            await daemon.end(signal.SIGKILL)
        record = node.root / STATE
        if how == "is gone":
            record.unlink()
        else:
            record.write_text(record.read_text()[:40])
        plugged(node, "2-1", stick("A0"), 2)
        async with node.daemon():
            await until_health(kubelet, SET, "46f4:0001-A0", "Unhealthy")
            plugged(node, "2-2", key("B0"), 3)
            await until_health(kubelet, SET, "46f4:0001-A0", "Healthy")
            two = await kubelet.admit(pod("two", {SET: 1}))
            running(two)
            assert places(one).isdisjoint(places(two))


async def test_a_set_is_made_of_what_nobody_has(node: Node) -> None:
    all_seen(node)
    configured(node, KEYS)
    plugged(node, "1-1", key("B1"), 14)
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(KEY, 1)
        one = await kubelet.admit(pod("one", {KEY: 1}))
        running(one)
        await named(node, "1234:5678-B1", one)
        plugged(node, "1-2", key("B2"), 15)
        plugged(node, "1-3", stick("A"), 16)
        configured(node, BUNDLE)
        await until_health(kubelet, SET, HEAD, "Healthy")
        two = await kubelet.admit(pod("two", {SET: 1}))
        running(two)
        assert places(one).isdisjoint(places(two))


async def test_a_set_is_made_of_what_the_host_does_not_use(node: Node) -> None:
    all_seen(node)
    configured(node, BUNDLE)
    plugged(node, "1-1", stick("A"), 14)
    node.usb.disk("1-1", "sdb", "8:16")
    node.host.write_file("/proc/1/mountinfo", "36 1 8:16 / /media/stick rw - vfat /dev/sdb rw")
    plugged(node, "1-2", stick("A2"), 15)
    plugged(node, "1-3", key("B1"), 16)
    async with node.kubelet() as kubelet, node.daemon():
        await until_health(kubelet, SET, "46f4:0001-A2", "Healthy")
        running(await kubelet.admit(pod("one", {SET: 1})))


@pytest.mark.parametrize("why", ["has just come", "does not answer"])
async def test_a_set_is_given_beside_a_spare_part_though_the_kubelet(node: Node, why: str) -> None:
    """Who holds what is not known for certain then: what is being lent is the asker's all the same."""
    all_seen(node)
    configured(node, BUNDLE)
    plugged(node, "1-1", stick("A"), 14)
    plugged(node, "1-2", key("B1"), 15)
    plugged(node, "1-3", stick("A2"), 16)
    async with node.kubelet(age=1.0 if why == "has just come" else 600.0) as kubelet:
        if why == "does not answer":
            kubelet.faults.set("pod-resources-exhausted", True)
        async with node.daemon():
            await kubelet.until_listed(SET, 1)
            running(await kubelet.admit(pod("one", {SET: 1})))
