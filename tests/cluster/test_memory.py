# SPDX-License-Identifier: Apache-2.0
"""What following two kinds costs a process of its own in memory, and that it does not grow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from nodeagent.sim.apiserver.store import KUBEVIRTS, NODES
from tests.cluster.following import cr, served

MOST = 24 * 2**20  # bytes that the client and two watches may add to a process with anyio
GROWTH = 1.5 * 2**20
EARLY, LATE = 300, 3000  # edits
CHILD = """
import sys
import anyio
from nodeagent.base import process


def say(what):
    print(what, process.read_numbers().resident_bytes, flush=True)

async def main(kubeconfig, *marks):
    say("bare")
    from nodeagent.cluster.credentials import Credentials
    from nodeagent.base.timeouts import Timeouts
    from nodeagent.cluster.api import Session
    from nodeagent.cluster.watch import Resource, Watch
    async with Session(Credentials(kubeconfig), Timeouts()) as session, anyio.create_task_group() as group:
        crs = Watch(session, Resource("/apis/kubevirt.io/v1/kubevirts", "KubeVirt resources"))
        node = Watch(session, Resource("/api/v1/nodes", "nodes", selector="metadata.name=node1"))
        for watch in (crs, node):
            group.start_soon(watch.run)
        await node.state.newer(0)
        seen = 0
        for mark in map(int, marks):
            while True:
                seen, known = await crs.state.newer(seen)
                objects = known.objects or {}
                if any(each["spec"]["configuration"]["gates"] == mark for each in objects.values()):
                    break
            say("mark")
        group.cancel_scope.cancel()

anyio.run(main, *sys.argv[1:])
"""


async def resident(lines: BufferedByteReceiveStream) -> int:
    """The bytes that the child says next."""
    return int((await lines.receive_until(b"\n", 100)).split()[1])


@pytest.mark.bench
async def test_two_watches_cost_little_and_do_not_grow_with_edits(tmp_path: Path) -> None:
    async with served(edit=0) as server:
        server.store.put(NODES, {"metadata": {"name": "node1"}})
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        command = [sys.executable, "-c", CHILD, kubeconfig, str(EARLY), str(LATE)]
        async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as child:
            assert child.stdout is not None
            lines = BufferedByteReceiveStream(child.stdout)
            sizes = [await resident(lines)]
            await server.until(lambda: server.statistics.streams == 2, timeout=20.0)
            for begin, end in ((1, EARLY), (EARLY + 1, LATE)):
                for number in range(begin, end + 1):
                    server.store.put(KUBEVIRTS, cr(number))
                    await anyio.lowlevel.checkpoint()
                sizes.append(await resident(lines))
    bare, early, late = sizes
    print(f"bare {bare / 2**20:.1f} MiB, two watches {early / 2**20:.1f} MiB, later {late / 2**20:.1f} MiB")
    assert early - bare < MOST
    assert late - early < GROWTH
