# SPDX-License-Identifier: Apache-2.0
"""Devices given as CDI names, on a node of its own with containerd 2.

containerd 1.6, which Debian 12 has, takes such an answer and injects nothing, without a word.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import building, cluster
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.namespace import traces
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, FOURTH, SECOND, THIRD, nodes_of, only, rule
from tests.sim import devnodes

NAME = "example.com/cdi"
MADE, RENDER = "example.com/made", "example.com/render"
_SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "made.example/part",
    "devices": [
        {
            "name": name,
            "containerEdits": {
                "env": [f"PART_{name.upper()}=yes"],
                "deviceNodes": [{"path": f"/dev/made/{name}", "hostPath": f"/dev/vfio/made{number}"}],
            },
        }
        for number, name in enumerate(("zero", "one"))
    ],
}


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """A second cluster, whose runtime knows CDI."""
    programs = building.kubernetes(building.chosen(os.environ))
    with cluster.running(programs, building.launcher(), building.containerd()) as found:
        yield found
    assert traces(found.base) == []


def test_a_pod_gets_its_nodes_through_cdi(running: Cluster, daemon: Daemon, pods: Pods) -> None:
    daemon.configure(only({**rule(NAME, FIRST, SECOND), "cdi": True}))
    daemon.start()
    running.await_counts(NAME, 2, 2)
    given = pods.run("injected", {NAME: 2}, f"/bin/launcher hostDevices {NAME} {NAME}")
    assert given.nodes == nodes_of(FIRST, SECOND)
    assert set(given.env["PCI_RESOURCE_EXAMPLE_COM_CDI"].split(",")) == {FIRST, SECOND}


def test_a_device_that_came_later_is_injected_too(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    host.unplug(FIRST)
    daemon.configure(only({**rule(NAME, FIRST), "cdi": True}))
    daemon.start()
    running.await_counts(NAME, 0, 0)
    host.plug(FIRST)
    host.bind(FIRST, "vfio-pci")
    running.await_counts(NAME, 1, 1)
    assert pods.run("late", {NAME: 1}).nodes == nodes_of(FIRST)


def test_a_pod_gets_what_another_tool_has_described_and_a_render_node_by_pattern(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    """The node is below /dev/vfio, since the runtime sees that of the simulated host alone."""
    for number, address in enumerate((THIRD, FOURTH)):
        host.bind(address, "amdgpu")
        behind = devnodes.real_directory(host, address)
        devnodes.add(host, f"/dev/vfio/renderD{128 + number}", (226, 128 + number), behind)
        devnodes.add(host, f"/dev/vfio/made{number}", (1, 3 + 2 * number))  # null and zero
    described = running.host / "var/run/cdi/made.json"
    described.parent.mkdir(parents=True, exist_ok=True)
    described.write_text(json.dumps(_SPEC))
    try:
        paths = [{"path": "/dev/vfio/renderD*", "mountPath": "/dev/dri/"}]
        render: dict[str, object] = {"name": RENDER, "node": {"perPath": True, "paths": paths}}
        made: dict[str, object] = {"name": MADE, "cdiDevices": {"kind": "made.example/part"}}
        daemon.configure(only(made, render))
        daemon.start()
        running.await_counts(MADE, 2, 2)
        running.await_counts(RENDER, 2, 2)
        look = "ls /dev/made/* /dev/dri; head -c 1 /dev/made/one | wc -c"
        given = pods.run("all", {MADE: 2, RENDER: 1}, look)
        assert (given.env["PART_ZERO"], given.env["PART_ONE"]) == ("yes", "yes")
        lines = given.text.splitlines()
        assert {"/dev/made/zero", "/dev/made/one", "1"} <= set(lines)
        assert sum(line.startswith("renderD") for line in lines) == 1
        host.bind(FOURTH, "vfio-pci")
        running.await_counts(RENDER, 2, 1)
        described.write_text("{")
        running.await_counts(MADE, 2, 0)
    finally:
        described.unlink()
