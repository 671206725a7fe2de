# SPDX-License-Identifier: Apache-2.0
"""``nodeagent bind`` and ``release`` beside a daemon, without one, killed, held up, and asked by others."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from nodeagent.base import sockets, threads
from tests.blackbox.harness import NOBODY, PATIENCE, Node, eventually
from tests.blackbox.test_bindings import AUDIO, BOUND, GPU, OWN, add_card, drivers_of, held_up
from tests.blackbox.test_bindings_faults import add_groups, everything, states
from tests.facts import names
from tests.sim.drivers import simulated

SOCKET = "run/nodeagent/status.sock"


@asynccontextmanager
async def begun(node: Node, *words: str) -> AsyncIterator[anyio.abc.Process]:
    """A verb as a process, killed at the end if it still runs."""
    command = [sys.executable, "-m", "nodeagent", "--root", str(node.root), *words]
    async with await anyio.open_process(command, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


async def said(process: anyio.abc.Process) -> str:
    """All that it has printed, to its end."""
    assert process.stdout is not None
    return b"".join([chunk async for chunk in process.stdout]).decode()


def killing(pid: int, at: int, done: bool) -> Callable[[int, bool], None]:
    """Kill the process at that write, before it has its effect or after."""

    def around(number: int, was_done: bool) -> None:
        if (number, was_done) == (at, done):
            os.kill(pid, signal.SIGKILL)

    return around


@pytest.mark.timeout(60)
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("number", range(1, 7))
async def test_what_a_killed_verb_has_begun_the_next_daemon_ends(node: Node, number: int, done: bool) -> None:
    groups = add_groups(node, 1, 2)
    async with simulated(node.host, *groups[0]) as drivers, node.kubelet():
        async with begun(node, "bind", groups[0][0]) as process:
            drivers.around = killing(process.pid, number, done)
            assert await process.wait() == -signal.SIGKILL
        async with node.daemon():
            await eventually(lambda: states(drivers, groups) == ["wished"], PATIENCE)
        wrote = len(drivers.writes)
        async with begun(node, "release", groups[0][0]) as process:
            drivers.around = killing(process.pid, wrote + number, done)
            assert await process.wait() == -signal.SIGKILL
        async with node.daemon():
            await eventually(lambda: states(drivers, groups) == ["before"], PATIENCE)
            await eventually(lambda: not node.has_former_drivers(), PATIENCE)


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_a_daemon_that_starts_meanwhile_is_kept_out_and_comes_after_it(node: Node) -> None:
    add_card(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet():
        with held_up(node, "snd_hda_intel"):
            async with begun(node, "bind", GPU) as process:
                await eventually(lambda: node.has_former_drivers(), PATIENCE)
                async with node.daemon(ready=False) as daemon:
                    assert await daemon.process.wait() == 1
                    assert any("another nodeagent serves" in line for line in daemon.raw)
                assert "not done yet" in await said(process)
                assert await process.wait() == 3
        assert drivers.driver(GPU) == "nouveau"


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_a_write_that_sleeps_is_told_after_a_while_and_the_daemon_goes_on(node: Node) -> None:
    add_card(node)
    other = "0000:5e:00.0"
    node.host.add_function(other, vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=20)
    async with (
        simulated(node.host, GPU, AUDIO, other) as drivers,
        node.kubelet(),
        node.daemon() as daemon,
    ):
        with held_up(node, "snd_hda_intel"):
            async with begun(node, "bind", GPU) as process:
                await eventually(lambda: node.has_former_drivers(), PATIENCE)
                assert (await node.command("bind", other)).returncode == 0
                assert drivers.driver(other) == "vfio-pci"
                told = await said(process)
                names(told, "not done yet", GPU, AUDIO, "vfio-pci")
                assert await process.wait() == 3
            await daemon.logged("action-waiting")
            (action,) = (await node.status())["changes"]["inProgress"]
            names(action, GPU, AUDIO, "vfio-pci")


@pytest.mark.timeout(60)
async def test_requests_that_come_at_once_are_answered_one_as_the_other(node: Node) -> None:
    groups = add_groups(node, 4, 2)
    async with simulated(node.host, *everything(groups)) as drivers, node.kubelet(), node.daemon():
        codes: list[int] = []

        async def ask(*words: str) -> None:
            codes.append((await node.command(*words)).returncode)

        async with anyio.create_task_group() as tasks:
            for group in (*groups, *groups):
                tasks.start_soon(partial(ask, "bind", group[0]))
        assert codes == [0] * 8
        assert states(drivers, groups) == ["wished"] * 4
        assert len(drivers.writes) == 4 * 2 * 3


@pytest.mark.timeout(60)
async def test_a_verb_waits_for_a_daemon_that_is_starting(node: Node) -> None:
    add_card(node)
    async with (
        simulated(node.host, GPU, AUDIO) as drivers,
        node.kubelet(),
        node.daemon(ready=False),
        begun(node, "bind", GPU) as process,
    ):
        assert "done: bind" in await said(process)
        assert drivers_of(drivers) == BOUND


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
async def test_nobody_but_root_is_answered(node: Node) -> None:
    add_card(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet(), node.daemon():
        assert (node.root / SOCKET).stat().st_mode & 0o777 == 0o600
        (node.root / SOCKET).chmod(0o666)
        node.root.chmod(0o755)
        body = json.dumps({"asking": "bind", "names": [GPU]})
        request = f"POST /requests HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}"
        script = (
            f"import os, socket; os.setuid({NOBODY}); s = socket.socket(socket.AF_UNIX); "
            f"s.connect('status.sock'); s.sendall(b'{request}'); "
            "os.write(1, s.recv(10) or b'nothing')"
        )
        done = await anyio.run_process(
            [sys.executable, "-c", script], cwd=(node.root / SOCKET).parent, check=False
        )
        assert done.stdout == b"nothing" or b"Broken" in done.stderr or b"reset" in done.stderr
        assert (drivers.writes, drivers_of(drivers)) == ([], OWN)


@pytest.mark.timeout(60)
async def test_the_log_says_who_has_asked_for_what_and_what_was_refused(node: Node) -> None:
    add_card(node)
    node.host.add_function(
        "0000:5e:00.0", vendor="8086", device="10d3", pci_class="020000", driver="vfio-pci", group=20
    )
    async with simulated(node.host, GPU, AUDIO), node.kubelet(), node.daemon() as daemon:
        assert (await node.command("bind", GPU, "--dry-run")).returncode == 0
        async with begun(node, "bind", GPU) as process:
            assert await process.wait() == 0
        accepted = await daemon.logged("request-accepted")
        assert (accepted["process"], accepted["operation"]) == (str(process.pid), "bind")
        assert accepted["device"] == [GPU, AUDIO]
        async with begun(node, "release", "5e:00.0") as process:
            assert await process.wait() == 3
        refused = await daemon.logged("request-refused")
        assert (refused["process"], refused["operation"]) == (str(process.pid), "release")
        assert (refused["object"], refused["device"]) == ("0000:5e:00.0", ["0000:5e:00.0"])
        names(refused["error"], "nodeagent")
        await node.command("bind", "0000:99:00.0")
        refused = await daemon.logged("request-refused", count=2)
        names(refused["error"], "0000:99:00.0")
        assert len(daemon.lines("request-accepted")) == 1


@pytest.mark.parametrize("question", [b"", b"{", b'{"asking": "burn", "names": []}', b'{"asking": "bind"}'])
async def test_what_is_no_request_is_answered_so_and_changes_nothing(node: Node, question: bytes) -> None:
    add_card(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet(), node.daemon():
        answer = await threads.call(sockets.ask, str(node.root / SOCKET), "/requests", 5.0, question)
        assert answer["error"]
        assert not answer.get("results")
        assert drivers.writes == []


@pytest.mark.slow
async def test_a_question_that_does_not_end_is_not_waited_for_nor_one_that_is_too_long(node: Node) -> None:
    add_card(node)
    async with simulated(node.host, GPU, AUDIO), node.kubelet(), node.daemon():
        with pytest.raises((ValueError, OSError)):
            await threads.call(sockets.ask, str(node.root / SOCKET), "/requests", 5.0, b" " * (1 << 20))
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            with sockets.shortened(node.root / SOCKET) as address:
                client.connect(address)
            client.sendall(b"POST /requests HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
            assert await threads.call(client.recv, 1) == b""


async def test_what_nobody_means_is_refused_before_anybody_is_asked(node: Node) -> None:
    add_card(node)
    for words, code, text in (
        (("bind", "gpu"), 2, '"gpu"'),
        (("bind", GPU, "--driver", "nouveau"), 2, "nouveau"),
        (("bind", "0000:99:00.0"), 1, "0000:99:00.0"),
        (("release",), 2, "NAME"),
    ):
        done = await node.command(*words)
        assert (done.returncode, done.stdout) == (code, "")
        assert text in done.stderr
