# SPDX-License-Identifier: Apache-2.0
"""Who may talk to the daemon, and what it loads: only root, and only what it needs."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import anyio
import pytest
from grpclib.exceptions import GRPCError

from tests.blackbox.harness import NOBODY, PATIENCE, T4, Node, allocate, eventually, socket_of

CLIENT = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([])
os.setgid({user})
os.setuid({user})
client = socket.socket(socket.AF_UNIX)
client.settimeout(10)
client.connect(sys.argv[2])
got = b""
try:
    client.send(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    while part := client.recv(65536):
        got += part
except ConnectionError:
    pass
print("hung up", len(got))
"""

RUN = """
import json, os, sys, threading, time
from nodeagent.cli import main as cli
from nodeagent.base import sockets

def watch():
    while True:
        try:
            sockets.ask(sys.argv[1] + "/run/nodeagent/status.sock", "/status", 5.0)
            break
        except OSError:
            time.sleep(0.01)
    print(json.dumps(sorted(sys.modules)), flush=True)
    os.kill(os.getpid(), 15)

threading.Thread(target=watch, daemon=True).start()
sys.exit(cli.main(["--root", sys.argv[1], "run", "--http-listen", ""]))
"""

HEAVY = (
    "pydantic",
    "structlog",
    "rich",
    "uvloop",
    "google.protobuf",
    "grpc",
    "kubernetes_asyncio",
    "aiohttp",
)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be imitated by root only")
async def test_nobody_but_root_is_talked_to(node: Node) -> None:
    node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        target = node.root / "run/nodeagent/status.sock"
        await eventually(target.exists)
        target.chmod(0o777)
        command = [sys.executable, "-c", CLIENT.format(user=NOBODY), str(target.parent), target.name]
        with anyio.fail_after(PATIENCE):
            done = await anyio.run_process(command, stderr=subprocess.STDOUT, check=False)
        assert done.stdout.decode().strip() == "hung up 0"
        assert daemon.alive
        assert kubelet.statistics.streams == {T4: 1}
        assert (await node.status())["resources"]


async def test_only_root_can_connect_to_a_plugin(node: Node) -> None:
    node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (_, kubelet):
        assert stat.S_IMODE(socket_of(kubelet, T4).stat().st_mode) == 0o600


@pytest.mark.parametrize("ids", [["x" * (1 << 20)], ["x"] * 100_000], ids=["a long one", "many"])
async def test_ids_without_bounds_are_refused_at_once_and_delay_nobody(node: Node, ids: list[str]) -> None:
    node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        with pytest.raises(GRPCError) as refused, anyio.fail_after(PATIENCE):
            await allocate(kubelet, T4, ids)
        assert len(refused.value.message or "") < 1100
        with anyio.fail_after(PATIENCE):
            assert (await node.status())["resources"]
        assert max(map(len, daemon.raw)) < 10_000


async def test_the_running_daemon_has_loaded_nothing_heavy(node: Node) -> None:
    node.add_gpus(1)
    node.configure("discovery: {naming: name}")
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process([sys.executable, "-c", RUN, str(node.root)], check=False)
    assert done.returncode == 0, done.stderr.decode()
    modules = set(done.stdout.decode().split('"'))
    assert "nodeagent.kubelet.endpoint" in modules
    assert not [heavy for heavy in HEAVY if heavy in modules]
    assert not [name for name in modules if ".dra" in name], "no rule has via: dra"
