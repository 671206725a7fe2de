# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain vmi``: machines of the cluster, by the rights of who asks; and whose CR judges them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import VMIS, VMS
from tests.blackbox.harness import LASTING, PATIENCE, T4, Node
from tests.blackbox.test_cluster import ENTRY, GPU, OTHER, followed, of, put, server_of
from tests.blackbox.test_machines import MACHINE
from tests.facts import names

ASKING = ("--kubeconfig", "/etc/kubeconfig")


def machine(name: str) -> dict[str, Any]:
    """The spec of a machine that asks for one of this resource."""
    return {"domain": {"devices": {"gpus": [{"name": "gpu1", "deviceName": name}]}}}


def instance(server: FakeApiServer, resource: str) -> None:
    """The cluster has the instance demo/red."""
    metadata = {"name": "red", "namespace": "demo"}
    server.store.put(VMIS, {"metadata": metadata, "spec": machine(resource)})


@pytest.fixture
async def server(node: Node) -> AsyncIterator[FakeApiServer]:
    node.add_gpu("0000:20:00.0", 20)
    async with server_of(node) as server:
        yield server


async def asked(node: Node, *words: str) -> Any:
    done = await node.command("explain", "vmi", *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_an_instance_is_fetched_and_judged_by_the_cr_of_the_cluster(
    node: Node, server: FakeApiServer
) -> None:
    put(server, ENTRY | {"resourceName": T4})
    instance(server, T4)
    told = await asked(node, "demo/red", *ASKING)
    assert told["vm"] == {"kind": "VirtualMachineInstance", "namespace": "demo", "name": "red"}
    assert told["availability"] == "now"
    assert told["cr"] == {"name": "kubevirt/kubevirt", "source": "api-server"}
    put(server, ENTRY | {"resourceName": OTHER})
    told = await asked(node, "demo/red", *ASKING)
    assert told["availability"] == "never"
    methods = {each.method for each in server.statistics.requests}
    assert methods == {"GET"}


async def test_without_an_instance_the_machine_itself_is_fetched(node: Node, server: FakeApiServer) -> None:
    spec = {"template": {"spec": machine(T4)}}
    server.store.put(VMS, {"metadata": {"name": "red", "namespace": "demo"}, "spec": spec})
    told = await asked(node, "demo/red", *ASKING)
    assert (told["vm"]["kind"], told["availability"], told["cr"]) == ("VirtualMachine", "now", None)


@pytest.mark.parametrize(
    ("denied", "name", "what", "hint"),
    [
        ((), "demo/blue", ("VirtualMachineInstance", "VirtualMachine demo/blue"), "-n demo"),
        (
            ("get", "virtualmachineinstances"),
            "demo/red",
            ("virtualmachineinstances", "demo"),
            "kubevirt.io:view",
        ),
        (("get", "virtualmachines"), "demo/blue", ("virtualmachines",), "kubevirt.io:view"),
    ],
)
async def test_a_machine_that_cannot_be_had_is_two_lines(
    node: Node,
    server: FakeApiServer,
    denied: tuple[str, str] | None,
    name: str,
    what: tuple[str, ...],
    hint: str,
) -> None:
    instance(server, T4)
    if denied:
        server.denied.add(denied)
    done = await node.command("explain", "vmi", name, *ASKING)
    assert (done.returncode, done.stdout) == (1, "")
    first, second = done.stderr.splitlines()
    names(first, *what)
    names(second, hint)


async def test_who_may_not_see_the_cr_is_told_so(node: Node, server: FakeApiServer) -> None:
    put(server, ENTRY)
    instance(server, T4)
    server.denied.add(("list", "kubevirts"))
    done = await node.command("explain", "vmi", "demo/red", *ASKING)
    assert done.returncode == 0
    assert "KubeVirt CR" in done.stderr
    told = await asked(node, "demo/red", *ASKING)
    assert (told["cr"], bool(told["notes"])) == (None, True)


@pytest.mark.slow
async def test_who_asks_does_so_with_a_kubeconfig_of_their_own(
    node: Node, server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tokens.add("daemon")
    server.tokens.add("person")
    instance(server, GPU)
    put(server, ENTRY)
    server.kubeconfig(node.root / "etc/kubeconfig", token="daemon")
    own = server.kubeconfig(tmp_path / "own", token="person")
    monkeypatch.setenv("KUBECONFIG", own)
    async with followed(node):
        assert await tokens(node, server, "demo/red") == {"Bearer person"}
        assert await tokens(node, server, "demo/red", *ASKING) == {"Bearer daemon"}, "the flag goes first"
        monkeypatch.delenv("KUBECONFIG")
        assert await tokens(node, server, "demo/red") == {"Bearer daemon"}, "else what the settings name"


async def tokens(node: Node, server: FakeApiServer, *words: str) -> set[str]:
    """As whom the command has asked."""
    before = len(server.statistics.requests)
    await asked(node, *words)
    return {each.authorization for each in server.statistics.requests[before:] if not each.watches}


async def test_a_file_is_judged_by_the_cr_that_the_daemon_goes_by(node: Node, server: FakeApiServer) -> None:
    put(server, ENTRY)
    file = node.root / "vm.yaml"
    file.write_text(MACHINE.replace("NAME", GPU))
    assert (await asked(node, str(file)))["cr"] is None
    async with followed(node) as (_, kubelet):
        await kubelet.until_listed(GPU, 1, PATIENCE)
        await node.until_told(lambda told: of(told, "lastSaved"))
        told = await asked(node, str(file))
        assert told["cr"] == {"name": "kubevirt/kubevirt", "source": "daemon"}
        assert not any("is not checked" in note for note in told["notes"])
        shown = await node.command("explain", "vmi", str(file))
        assert "kubevirt/kubevirt" in shown.stdout
    assert (await asked(node, str(file)))["cr"] is None, "these settings read no CR"
    told = await asked(node, str(file), "--kubevirt-enabled", "true")
    assert told["cr"] == {"name": "kubevirt/kubevirt", "source": "record"}
    kept = node.root / LASTING
    kept.write_text("{")
    assert (await asked(node, str(file), "--kubevirt-enabled", "true"))["cr"] is None
    assert kept.read_text() == "{", "whoever asks changes nothing"
