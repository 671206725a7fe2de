# SPDX-License-Identifier: Apache-2.0
"""Below ``--root``, and of a saved host, nothing that is advised is to be done on the machine of who asks."""

from __future__ import annotations

import re

import anyio

from tests.blackbox.harness import T4, Node, eventually
from tests.facts import names
from tests.http.serving import serve_document

COMMANDS = re.compile(r"\b(systemctl|journalctl|modprobe|fuser|dmesg|lspci|systemd-\w+|echo \d)\b|/sys/bus")
HERE = re.compile(r"\bthis machine\b|sudo")
MANAGED = "mdevs: {manage: true, types: [nvidia-222]}\n"


def assert_elsewhere(text: str) -> None:
    """Whatever acts on a machine says on which."""
    for line in text.splitlines():
        assert HERE.search(line) is None
        assert COMMANDS.search(line) is None or "the host" in line, line


async def test_commands_are_for_the_host_that_is_looked_at(node: Node) -> None:
    opened, waiting = node.add_gpus(2)
    node.host.bind(waiting, None)
    node.configure("timing: {resync: 1s}\n")
    async with node.running(listed={T4: 1}):
        await node.until_told(lambda told: bool(told["kubelet"]["holdersKnown"]))
        node.host.hold(opened)  # which has no event
        await node.until_told(lambda told: "held-outside-kubernetes" in str(told["resources"]))
        for verb in (("status",), ("explain", opened), ("explain", T4)):
            done = await node.command(*verb)
            assert "fuser -v /dev/vfio/*" in done.stdout
            assert_elsewhere(done.stdout + done.stderr)


async def test_a_driver_is_loaded_on_the_host_that_lacks_it(node: Node) -> None:
    (address,) = node.add_gpus(1)
    node.host.bind(address, None)
    (node.root / "sys/bus/pci/drivers/vfio-pci").rename(node.root / "gone")
    done = await node.command("scan")
    assert "modprobe vfio-pci" in done.stdout
    assert_elsewhere(done.stdout + done.stderr)


async def test_a_daemon_that_is_away_or_another_is_not_the_service_of_this_machine(node: Node) -> None:
    start = f"nodeagent run --root {node.root}"
    done = await node.command("status")
    assert start in done.stderr
    assert_elsewhere(done.stderr)
    path = str(node.root / "run/nodeagent/status.sock")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_document, path, lambda: {"a": 1})
        await eventually((node.root / "run/nodeagent/status.sock").exists)
        done = await node.command("status")
        tasks.cancel_scope.cancel()
    assert done.returncode == 1
    assert done.stderr.splitlines()[1].endswith(start)
    assert_elsewhere(done.stderr)


async def test_the_machine_id_of_another_host_is_not_made_here(node: Node) -> None:
    node.add_gpus(1)
    node.configure(MANAGED)
    done = await node.command("plan")
    what, hint = done.stderr.splitlines()
    names(what, f"{node.root}/etc/machine-id")
    names(hint, "/etc/machine-id", "--machine-id")
    saved = node.root / "host.json"
    saved.write_text((await node.command("scan", "-o", "json")).stdout)
    what, again = (await node.command("plan", "--host", str(saved))).stderr.splitlines()
    assert ("/etc/machine-id" in what, str(node.root) in what) == (True, False)
    assert again == hint
