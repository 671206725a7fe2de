# SPDX-License-Identifier: Apache-2.0
"""The daemon asked by HTTP: numbers, health, an address that others have, clients that stay."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import anyio
import pytest

from nodeagent.base import threads
from tests.blackbox.harness import PATIENCE, T4, Daemon, Node, allocate, pod, until_health
from tests.facts import names

ANY_PORT = ("--http-listen", "127.0.0.1:0")
LATE = ("h11", "nodeagent.render", "nodeagent.http.connection")
LOADED = f"import sys, nodeagent.app; print([name for name in {LATE} if name in sys.modules])"


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body; blocks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


async def port_of(daemon: Daemon) -> int:
    """Where it is served."""
    address = str((await daemon.logged("http-served"))["address"])
    return int(address.rstrip("/").rpartition(":")[2])


async def numbers(port: int) -> dict[str, float]:
    """Series → value."""
    _, text = await threads.call(get, port, "/metrics")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {series: float(value) for series, value in (line.rsplit(" ", 1) for line in lines)}


async def test_metrics_tell_what_the_status_tells(node: Node) -> None:
    first, second = node.add_gpus(2)
    async with node.running(*ANY_PORT, listed={T4: 2}) as (daemon, kubelet):
        port = await port_of(daemon)
        await kubelet.admit(pod("p", {T4: 1}))
        await node.until_told(lambda told: len(told["holders"]) == 1)
        held = next(iter((await node.status())["holders"]))
        free = second if held == first else first
        node.host.bind(free, "nouveau")
        await until_health(kubelet, T4, free, "Unhealthy")
        with pytest.raises(Exception, match="driver"):
            await allocate(kubelet, T4, [free])
        told, found = await node.status(), await numbers(port)
    at = f'{{resource="{T4}"'
    assert found[f'nodeagent_devices{at},health="healthy",reason=""}}'] == 1
    assert found[f'nodeagent_devices{at},health="unhealthy",reason="driver-changed"}}'] == 1
    assert found[f"nodeagent_devices_allocated{at}}}"] == 1
    assert found[f'nodeagent_allocations_total{at},result="granted"}}'] == 1
    assert found[f'nodeagent_allocations_total{at},result="refused"}}'] == 1
    assert found["nodeagent_allocate_duration_seconds_count"] == sum(told["allocating"]["counts"]) == 2
    assert found[f"nodeagent_registrations_total{at}}}"] == told["resources"][0]["registrations"] == 1
    assert found["nodeagent_problems"] == len(told["problems"]) == 1
    assert found['nodeagent_events_total{source="tree"}'] <= told["host"]["events"]["events"]
    assert found["nodeagent_scan_duration_seconds_count"] >= 2
    assert found["process_start_time_seconds"] == pytest.approx(time.time(), abs=PATIENCE * 3)
    assert found["process_resident_memory_bytes"] > 10 << 20


async def test_health_is_told_with_and_without_a_kubelet(node: Node) -> None:
    node.add_gpus(1)
    async with node.daemon(*ANY_PORT) as daemon:
        port = await port_of(daemon)
        assert await threads.call(get, port, "/healthz") == (200, "alive\n")
        assert await threads.call(get, port, "/readyz") == (200, "ready\n")
        async with node.kubelet() as kubelet:
            await kubelet.until_listed(T4, 1, PATIENCE)
            await node.until_told(lambda told: bool(told["resources"][0].get("watched")))
            assert await threads.call(get, port, "/readyz") == (200, "ready\n")
            assert (await numbers(port))["nodeagent_kubelet_present"] == 1


async def test_a_busy_address_ends_nothing_and_is_taken_when_the_settings_name_another(node: Node) -> None:
    node.add_gpus(1)
    taken = socket.create_server(("127.0.0.1", 0))
    busy = f"127.0.0.1:{taken.getsockname()[1]}"
    with taken:
        async with node.kubelet() as kubelet, node.daemon("--http-listen", busy) as daemon:
            await kubelet.until_listed(T4, 1, PATIENCE)
            refused = await daemon.logged("http-refused")
            assert busy in refused["error"]
            told = await node.until_told(lambda told: bool(told.get("findings")))
            ((code, what, wrong),) = [
                (each["code"], each["message"], each["actionRequired"]) for each in told["findings"]
            ]
            names(what, busy, "Address already in use")
            done = await node.command("status")
            assert (code, wrong, told["problems"], done.returncode) == ("http", False, [], 0)
            names(done.stdout, busy, "Address already in use")
            await daemon.logged("http-refused")
            assert len(daemon.lines("http-refused")) == 1


async def test_a_file_that_is_saved_moves_it(node: Node) -> None:
    node.configure("http: {listen: '127.0.0.1:0'}\n")
    run = [sys.executable, "-m", "nodeagent", "--root", str(node.root), "run", "--log-format", "json"]
    async with await anyio.open_process(run, stdout=subprocess.DEVNULL) as process:
        daemon = Daemon(process)
        async with anyio.create_task_group() as listening:
            listening.start_soon(daemon.listen)
            first = await port_of(daemon)
            node.configure("http: {listen: '[::1]:0'}\n")
            assert (await daemon.logged("http-served", 2))["address"].startswith("http://[::1]:")
            with pytest.raises(ConnectionRefusedError):
                await threads.call(get, first, "/healthz")
            assert await daemon.end() == 0
            listening.cancel_scope.cancel()


class Stream:
    """An open page: the events that come to it. Blocks."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self.connection.request("GET", "/events")
        self.answer = self.connection.getresponse()

    def next(self) -> dict[str, Any]:
        """The next event."""
        line = next(line for line in iter(self.answer.readline, b"") if line.startswith(b"data: "))
        document: dict[str, Any] = json.loads(line[6:])
        return document


async def test_an_open_page_gets_the_status_and_what_becomes_of_it(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(*ANY_PORT, "--http-page", "true", listed={T4: 1}) as (daemon, _):
        stream = await threads.call(Stream, await port_of(daemon))
        first = await threads.call(stream.next)
        assert first.keys() >= (await node.status()).keys() - {"process"}
        assert first["groups"][0]["members"][0]["device"] == address
        node.host.bind(address, "nouveau")
        with anyio.fail_after(PATIENCE):
            while not (told := await threads.call(stream.next))["problems"]:
                pass
        assert told["resources"][0]["devices"][0]["reason"] == "driver-changed"
        began = time.monotonic()
        assert await daemon.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < 5
        stream.connection.close()


async def test_clients_that_stay_delay_no_end(node: Node) -> None:
    async with node.daemon(*ANY_PORT) as daemon:
        port = await port_of(daemon)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for client in clients[:10]:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
        await threads.call(get, port, "/healthz")
        began = time.monotonic()
        assert await daemon.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < 5
        for client in clients:
            client.close()


def test_whoever_speaks_http_is_not_loaded_with_the_daemon() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
