# SPDX-License-Identifier: Apache-2.0
"""What real containers are given: environment, device nodes, and what KubeVirt's own code makes of it."""

from __future__ import annotations

import signal
import xml.etree.ElementTree as ElementTree

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import pods as pods_of
from tests.e2e import waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Given, Pods
from tests.e2e.resources import FIRST, FOURTH, GPU, GPU_ENV, SECOND, THIRD, nodes_of, only, rule
from tests.facts import names


def addresses(given: Given) -> list[str]:
    """The PCI addresses of the <hostdev> elements in what a container printed."""
    start, end = given.text.index("<devices>"), given.text.index("</devices>") + len("</devices>")
    found = ElementTree.fromstring(given.text[start:end]).iterfind("hostdev/source/address")
    return [
        "{domain}:{bus}:{slot}.{function}".format(
            **{name: value.removeprefix("0x") for name, value in address.attrib.items()}
        )
        for address in found
    ]


def test_a_pod_gets_the_variable_and_the_nodes_of_its_device(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    given = pods.run("one", {GPU: 1}, f"/bin/launcher gpus {GPU}")
    assert given.nodes == nodes_of(given.env[GPU_ENV])
    assert addresses(given) == [given.env[GPU_ENV]]


def test_a_container_with_two_devices_gets_both_and_virt_launcher_attaches_both(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    given = pods.run("two", {GPU: 2}, f"/bin/launcher hostDevices {GPU} {GPU}")
    both = given.env[GPU_ENV].split(",")
    assert len(set(both)) == 2
    assert given.nodes == nodes_of(*both)
    assert addresses(given) == both


def test_a_pod_may_take_two_resources(running: Cluster, daemon: Daemon, pods: Pods) -> None:
    daemon.configure(only(rule("example.com/left", FIRST), rule("example.com/right-1.x", SECOND)))
    daemon.start()
    running.await_counts("example.com/right-1.x", 1, 1)
    running.await_counts("example.com/left", 1, 1)
    command = "/bin/launcher hostDevices example.com/right-1.x example.com/left"
    given = pods.run("pair", {"example.com/left": 1, "example.com/right-1.x": 1}, command)
    assert given.env["PCI_RESOURCE_EXAMPLE_COM_LEFT"] == FIRST
    assert given.env["PCI_RESOURCE_EXAMPLE_COM_RIGHT-1_X"] == SECOND
    assert given.nodes == nodes_of(FIRST, SECOND)


def test_an_init_container_and_its_app_container_share_the_device(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    first = pods_of.container("first", {GPU: 1}, then="")
    pods.create(pods_of.manifest("staged", pods_of.container("main", {GPU: 1}), init=(first,)))
    given = pods.given("staged")
    assert pods.given("staged", "first").env[GPU_ENV] == given.env[GPU_ENV]
    assert given.nodes == nodes_of(given.env[GPU_ENV])


def test_a_sidecar_and_its_app_container_get_a_device_each(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    sidecar = {**pods_of.container("beside", {GPU: 1}), "restartPolicy": "Always"}
    pods.create(pods_of.manifest("company", pods_of.container("main", {GPU: 1}), init=(sidecar,)))
    both = {pods.given("company", name).env[GPU_ENV] for name in ("beside", "main")}
    assert len(both) == 2


def test_all_devices_can_be_given_away_one_after_the_other(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    given = [pods.run(f"pod{index}", {GPU: 1}).env[GPU_ENV] for index in range(4)]
    assert sorted(given) == [FIRST, SECOND, THIRD, FOURTH]


def test_the_text_of_a_refused_allocate_is_in_the_status_of_the_pod(
    running: Cluster, daemon: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    name = "example.com/refused"
    daemon.configure(only(rule(name, FIRST)))
    daemon.start()
    running.await_counts(name, 1, 1)
    log = running.kubelet.log.stat().st_size
    daemon.send(signal.SIGSTOP)  # it cannot tell the kubelet in time that the device has changed
    host.bind(FIRST, "nvidia")
    pods.start("refused", {name: 1})
    waiting.until(lambda: running.kubelet.allocates(log), "the Allocate is on its way")
    daemon.send(signal.SIGCONT)
    status = pods.await_phase("refused", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    names(status["message"], name, FIRST, "nvidia", "VFIO")
    running.await_counts(name, 1, 0)


@pytest.mark.parametrize("kind", ["hostDevices", "gpus"])
def test_virt_launcher_refuses_when_one_address_is_missing(
    running: Cluster, daemon: Daemon, pods: Pods, kind: str
) -> None:
    daemon.start()
    running.await_counts(GPU, 4, 4)
    given = pods.run(f"short-{kind.lower()}", {GPU: 1}, f"/bin/launcher {kind} {GPU} {GPU} 2>&1 || true")
    assert "do not match the number of devices" in given.text
