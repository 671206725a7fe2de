# SPDX-License-Identifier: Apache-2.0
"""``plan --config`` beside a running daemon: what a file would change for the kubelet, and for which pods.

What it says is what happens when the file is then put in place.
"""

from __future__ import annotations

import json
from typing import Any

from nodeagent.sim.apiserver.store import KUBEVIRTS
from tests.blackbox import test_cluster
from tests.blackbox.harness import T4, Node, pod
from tests.blackbox.test_cluster import server_of
from tests.blackbox.test_verbs import until_asked
from tests.cluster import crs

GPU = "example.com/gpu"
NEW = f"resources: [{{name: {GPU}, pci: [{{vendors: ['10de'], devices: ['1eb8']}}]}}]\n"


async def dry_run(node: Node, text: str) -> dict[str, Any]:
    path = node.root / "new.yaml"
    path.write_text(text)
    done = await node.command("plan", "--config", str(path), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def counts(told: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Devices and healthy ones of each resource that would be other."""
    after = {each["name"]: each["after"] for each in told["resources"]}
    return {name: (each["devices"], each["healthy"]) for name, each in after.items() if each}


async def test_it_says_which_pods_are_touched_and_what_it_says_happens(node: Node) -> None:
    gpus = node.add_gpus(2)
    node.host.write_file("/etc/machine-id", "0123456789abcdef" * 2)
    async with node.running(listed={T4: 2}) as (_, kubelet):
        await until_asked(node)
        await kubelet.admit(pod("red", {T4: 1}))
        await node.until_told(lambda told: "ns/red" in json.dumps(told))
        told = await dry_run(node, NEW)
        ((name, (taken,)),) = told["pods"].items()
        assert (name, taken in gpus) == ("ns/red", True)
        node.configure(NEW)
        await kubelet.until_listed(GPU, 2)
        wanted = counts(told)
        await kubelet.until(lambda: {name: kubelet.capacity(name) for name in wanted} == wanted)


async def test_the_kubevirt_cr_that_the_daemon_goes_by_counts_on_both_sides(node: Node) -> None:
    node.add_gpu("0000:20:00.0", 20)
    node.host.write_file("/etc/machine-id", "0123456789abcdef" * 2)
    async with server_of(node) as server:
        entry = {"pciVendorSelector": "10DE:1EB8", "resourceName": GPU, "externalResourceProvider": True}
        server.store.put(KUBEVIRTS, crs.document({"permittedHostDevices": {"pciHostDevices": [entry]}}))
        async with test_cluster.followed(node) as (_, kubelet):
            await kubelet.until_listed(GPU, 1)
            await until_asked(node)
            same = await dry_run(node, "mdevs: {adopt: true}\n")
            assert [each["key"] for each in same["settings"]] == ["mdevs.adopt"]
            assert same["resources"] == same["devices"] == []
            off = await dry_run(node, "kubevirt: {serve: none}\n")
            assert counts(off) == {T4: (1, 1)}
