# SPDX-License-Identifier: Apache-2.0
"""The verbs beside a running daemon: its settings and verdicts count; without one, the first line tells."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.harness import T4, Node, eventually, health
from tests.facts import names

OFF = ("--discovery-enabled", "false")
BROKEN = "discovery: [no table\n"


async def answer(node: Node, *arguments: str) -> Any:
    """What a verb answers as JSON, with nothing to say beside it."""
    done = await node.command(*arguments, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


async def until_asked(node: Node) -> None:
    """Wait until its socket is there: the daemon is ready before it can be asked."""
    await eventually((node.root / "run/nodeagent/status.sock").exists)


async def test_explain_and_scan_go_by_the_settings_of_the_daemon(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.daemon(*OFF):
        await until_asked(node)
        assert (await node.status())["resources"] == []
        assert (await answer(node, "explain", address))["verdict"].startswith("not offered")
        done = await node.command("scan")
        assert address in done.stdout
        assert T4 not in done.stdout
        assert done.stderr == ""


async def test_an_open_device_under_a_young_kubelet_is_the_same_to_the_list_and_to_the_verbs(
    node: Node,
) -> None:
    """Right after its start a kubelet may not know its pods: whoever has it open may be one of them."""
    (address,) = node.add_gpus(1)
    node.host.hold(address)
    async with node.kubelet(age=0.0) as kubelet, node.daemon():
        await kubelet.until_listed(T4, 1)
        await until_asked(node)
        await node.until_told(lambda told: told["kubelet"]["podResources"] == "answers")
        listed = health(kubelet, T4)[address] == "Healthy"
        assert (await answer(node, "explain", address))["healthy"] is listed


async def test_config_shows_the_settings_of_the_daemon_and_where_it_has_them_from(node: Node) -> None:
    async with node.daemon(*OFF, environ={"NODEAGENT_TIMING_RESYNC": "7s"}):
        await until_asked(node)
        values = (await answer(node, "config"))["settings"]
    assert values["discovery.enabled"] == {"value": False, "source": "flag --discovery-enabled"}
    assert values["timing.resync"] == {"value": "7s", "source": "env NODEAGENT_TIMING_RESYNC"}


async def test_the_settings_in_force_are_shown_while_a_bad_file_waits_to_be_mended(node: Node) -> None:
    (address,) = node.add_gpus(1)
    node.configure("timing: {resync: 9s}\n")
    async with node.daemon() as daemon:
        await until_asked(node)
        node.configure(BROKEN)
        await daemon.logged("config-refused")
        done = await node.command("config", "-o", "json")
        values = json.loads(done.stdout)["settings"]
        assert values["timing.resync"] == {"value": "9s", "source": "config.yaml:1"}
        assert "config.yaml:" in done.stderr
        assert done.returncode == 3
        assert (await answer(node, "explain", address))["resource"] == T4


async def test_status_asks_whatever_is_wrong_with_the_file(node: Node) -> None:
    node.add_gpus(1)
    async with node.daemon() as daemon:
        await until_asked(node)
        node.configure(BROKEN)
        await daemon.logged("config-refused")
        done = await node.command("status")
        assert (done.returncode, done.stderr) == (3, "")
        assert "config.yaml:" in done.stdout


async def test_status_finds_the_socket_that_the_rest_of_a_bad_file_names(node: Node) -> None:
    node.configure("status: {socket: /run/other.sock}\n")
    async with node.daemon() as daemon:
        await eventually((node.root / "run/other.sock").exists)
        node.configure("status: {socket: /run/other.sock}\nweather: fine\n")
        await daemon.logged("config-refused")
        assert (await node.command("status")).returncode == 3
        done = await node.command("status", "--status-socket", "/run/none.sock")
        assert (done.returncode, done.stdout) == (1, "")
        assert "/run/none.sock" in done.stderr


@pytest.mark.parametrize("verb", [("scan",), ("config",), ("explain", "0000:10:00.0"), ("plan",)])
async def test_flags_of_the_shell_are_not_used_while_a_daemon_answers_and_that_is_said(
    node: Node, verb: tuple[str, ...]
) -> None:
    node.add_gpus(1)
    node.host.write_file("/etc/machine-id", "0123456789abcdef" * 2)
    async with node.daemon():
        await until_asked(node)
        plain = await node.command(*verb)
        flagged = await node.command(*verb, *OFF)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert (flagged.returncode, flagged.stdout) == (0, plain.stdout)
    (line,) = flagged.stderr.splitlines()
    assert "--discovery-enabled" in line
    assert "without effect" in line


@pytest.mark.parametrize("verb", [("scan",), ("config",), ("explain", "0000:10:00.0"), ("plan",)])
async def test_without_a_daemon_the_first_line_says_whose_settings_count(
    node: Node, verb: tuple[str, ...]
) -> None:
    node.add_gpus(1)
    node.host.write_file("/etc/machine-id", "0123456789abcdef" * 2)
    done = await node.command(*verb, *OFF)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    names(line, f"{node.root}/run/nodeagent/status.sock")
    if verb[0] == "explain":
        assert "not offered" in done.stdout


async def test_a_saved_host_is_explained_without_asking_anybody(node: Node) -> None:
    (address,) = node.add_gpus(1)
    saved = node.root / "host.json"
    async with node.daemon(*OFF):
        await until_asked(node)
        saved.write_text(json.dumps(await answer(node, "scan")))
        told = await answer(node, "explain", address, "--host", str(saved))
    assert told["resource"] == T4


def listed_as(status: Any) -> str:
    """What the daemon says of the only device of its only resource."""
    ((device,),) = (resource["devices"] for resource in status["resources"])
    return str(device.get("message"))


async def test_what_stays_listed_is_explained_as_the_daemon_lists_it(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as _:
        node.host.bind(address, "nouveau")
        await until_asked(node)
        status = await node.until_told(lambda status: "nouveau" in listed_as(status))
        told = await answer(node, "explain", address)
        assert told["reason"]["message"] == listed_as(status)
        assert told["rules"][-1]["rule"] == "memory"


async def test_what_has_gone_and_stays_listed_for_its_pod_is_explained_as_the_daemon_lists_it(
    node: Node,
) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (_, kubelet):
        await kubelet.admit(Pod("ns", "vm", [{T4: 1}]))
        await node.until_told(lambda status: address in status["holders"])
        node.host.unplug(address)
        await node.until_told(lambda status: "ns/vm" in listed_as(status))
        done = await node.command("explain", address)
    assert done.returncode == 1
    what, hint = done.stderr.splitlines()
    names(what, address, T4, "Unhealthy", "ns/vm")
    names(hint, "ns/vm")


async def test_a_rule_of_the_daemon_is_named_with_its_place(node: Node) -> None:
    (address,) = node.add_gpus(1)
    node.configure("resources:\n- {name: example.com/gpu, pci: [{vendors: ['10de']}]}\n")
    async with node.daemon():
        await until_asked(node)
        told = await answer(node, "explain", address)
    assert [each["rule"] for each in told["rules"]] == ["rule example.com/gpu (config.yaml:2)"]


async def test_costly_facts_are_read_beside_a_daemon_too(node: Node) -> None:
    (address,) = node.add_gpus(1)
    fatal(node.host, address)
    async with node.daemon():
        await until_asked(node)
        done = await node.command("explain", address)
    assert "2 fatal PCIe errors" in done.stdout


def fatal(host: SimulatedHost, address: str) -> None:
    host.write(address, "aer_dev_fatal", "Undefined 0\nTOTAL_ERR_FATAL 2")


async def test_both_sockets_go_with_the_daemon(node: Node) -> None:
    async with node.daemon() as daemon:
        await until_asked(node)
        assert await daemon.end() == 0
    assert list((node.root / "run/nodeagent").glob("*.sock*")) == []
