# SPDX-License-Identifier: Apache-2.0
"""What happens to many at once, or again and again, is a line with a number and not as many lines."""

from __future__ import annotations

import contextlib
import resource as limits
import socket
from pathlib import Path

import anyio
import pytest

from nodeagent.base import sockets
from nodeagent.sim import files
from tests.blackbox.harness import PATIENCE, Node, health

SHARES = 1000
KVM = "example.com/kvm"
FEW = 25  # lines
PLUGINS = 20
SECONDS = 8.0


def configure(node: Node) -> None:
    node.configure(
        f"apiVersion: nodeagent/v1\nresources: [{{name: {KVM}, node: {{path: /dev/kvm, count: {SHARES}}}}}]\n"
    )


async def test_a_node_that_goes_with_a_thousand_shares_is_few_lines(node: Node) -> None:
    configure(node)
    node.host.node("/dev/kvm")
    async with node.running(listed={KVM: SHARES}) as (daemon, kubelet):
        before = len(daemon.raw)
        files.remove(node.host.path("/dev/kvm"))
        await kubelet.until(lambda: set(health(kubelet, KVM).values()) == {"Unhealthy"}, PATIENCE)
        await daemon.logged("device-unhealthy", resource=KVM)
        (gone,) = daemon.lines("device-unhealthy", resource=KVM)
        assert f"each of {SHARES} shares" in gone["message"]
        node.host.node("/dev/kvm")
        await kubelet.until(lambda: set(health(kubelet, KVM).values()) == {"Healthy"}, PATIENCE)
        await daemon.logged("device-healthy")
        assert len(daemon.raw) - before < FEW


@pytest.mark.slow
async def test_sockets_that_cannot_be_accepted_are_few_lines(node: Node) -> None:
    """No descriptor is left for eight seconds, and twenty plugins are dialled again and again."""
    rules = "\n".join(
        f"- {{name: example.com/r{number}, node: {{path: /dev/kvm, count: 1}}}}" for number in range(PLUGINS)
    )
    node.configure(f"apiVersion: nodeagent/v1\nresources:\n{rules}\n")
    node.host.node("/dev/kvm")
    async with node.running(listed={f"example.com/r{PLUGINS - 1}": 1}) as (daemon, _):
        await daemon.logged("resource-registered", PLUGINS)
        before = len(daemon.raw)
        _, hard = limits.prlimit(daemon.pid, limits.RLIMIT_NOFILE)
        limits.prlimit(daemon.pid, limits.RLIMIT_NOFILE, (3, hard))
        with contextlib.ExitStack() as open_ones, anyio.move_on_after(SECONDS):
            while True:
                for name in node.sockets():
                    dial(open_ones, node.plugins / name)
                await anyio.sleep(0.5)
        limits.prlimit(daemon.pid, limits.RLIMIT_NOFILE, (hard, hard))
        assert "Too many open files" in (await daemon.logged("no-descriptors"))["message"]
        assert len(daemon.raw) - before < FEW
        assert len(daemon.lines("no-descriptors")) == 1
        await node.status()


def dial(open_ones: contextlib.ExitStack, path: Path) -> None:
    """One more connection that waits to be accepted."""
    client = open_ones.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
    with contextlib.suppress(BlockingIOError), sockets.shortened(path) as address:
        client.connect(address)
