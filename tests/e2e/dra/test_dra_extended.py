# SPDX-License-Identifier: Apache-2.0
"""Extended resources by DRA (KEP-5004): unchanged pods and VMs get devices that the scheduler allocates."""

from __future__ import annotations

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.dra import mdevs, reading
from tests.e2e.dra.objects import Objects, devices_of
from tests.e2e.dra.settings import by_dra, launch, settings
from tests.e2e.dra.slices import await_devices, name_of
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, GROUPS, SECOND, THIRD, nodes_of, rule

pytestmark = pytest.mark.timeout(300)

GPU, VGPU = "example.com/gpu", "example.com/vgpu"
GPU_ENV, VGPU_ENV = "PCI_RESOURCE_EXAMPLE_COM_GPU", "MDEV_PCI_RESOURCE_EXAMPLE_COM_VGPU"
MDEV = f"mdev-{mdevs.UUID}"
BY_CLASS = "deviceclass.resource.kubernetes.io/gpus"
BY_CLASS_ENV = "PCI_RESOURCE_DEVICECLASS_RESOURCE_KUBERNETES_IO_GPUS"


def start(running: Cluster, driver: Daemon, objects: Objects, host: SimulatedHost) -> str:
    """Publish two GPUs and an mdev, each by a class with the resource's name; return the mdev's group."""
    group = mdevs.add(host)
    names = [name_of(FIRST), name_of(SECOND), MDEV]
    launch(running, driver, names, by_dra(GPU, FIRST, SECOND), mdevs.rule(VGPU))
    objects.device_class("gpus", GPU, extended=True)
    objects.device_class("vgpus", VGPU, extended=True)
    return group


def test_a_pod_that_requests_a_resource_gets_the_variable_of_virt_launcher(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects, host: SimulatedHost
) -> None:
    start(running, driver, objects, host)
    given = pods.run("one", {GPU: 1}, f"/bin/launcher gpus {GPU}")
    (device,) = devices_of(running.api, "one")
    address = given.env[GPU_ENV]
    assert name_of(address) == device
    assert given.nodes == nodes_of(address)
    assert reading.host_devices(given) == [address]


def test_a_pod_gets_two_devices_of_a_resource_in_the_order_of_the_allocation(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects, host: SimulatedHost
) -> None:
    start(running, driver, objects, host)
    given = pods.run("two", {GPU: 2}, f"/bin/launcher hostDevices {GPU} {GPU}")
    addresses = given.env[GPU_ENV].split(",")
    assert [name_of(address) for address in addresses] == devices_of(running.api, "two")
    assert given.nodes == nodes_of(FIRST, SECOND)
    assert reading.host_devices(given) == addresses


def test_a_pod_gets_a_function_and_an_mdev_of_two_resources(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects, host: SimulatedHost
) -> None:
    group = start(running, driver, objects, host)
    given = pods.run("mixed", {GPU: 1, VGPU: 1}, f"/bin/launcher hostDevices {GPU} {VGPU}")
    address = given.env[GPU_ENV]
    assert given.env[VGPU_ENV] == mdevs.UUID
    assert given.nodes == nodes_of(address) | {f"/dev/vfio/{group}"}
    assert sorted(reading.host_devices(given)) == sorted([address, mdevs.UUID])


def test_a_pod_that_names_the_class_gets_the_variable_of_that_name(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects, host: SimulatedHost
) -> None:
    start(running, driver, objects, host)
    given = pods.run("by-class", {BY_CLASS: 1}, f"/bin/launcher hostDevices {BY_CLASS}")
    assert given.env[BY_CLASS_ENV] == given.env[GPU_ENV]
    assert reading.host_devices(given) == [given.env[GPU_ENV]]


def allocatable(running: Cluster) -> int:
    """How many devices the device plugin can still give to pods, as the scheduler knows it."""
    return (running.counts(GPU) or (0, 0))[1]


def test_a_resource_that_moves_to_dra_goes_on_for_new_pods(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    driver.configure(settings(rule(GPU, FIRST, SECOND, THIRD)))
    driver.start()
    running.await_counts(GPU, 3, 3)
    objects.device_class("gpus", GPU, extended=True)
    held = pods.run("by-plugin", {GPU: 1}).env[GPU_ENV]
    assert devices_of(running.api, "by-plugin") == []
    driver.configure(settings(by_dra(GPU, FIRST, SECOND, THIRD)))
    free = [address for address in (FIRST, SECOND, THIRD) if address != held]
    await_devices(running.api, map(name_of, free))
    waiting.until(lambda: allocatable(running) == 0, "the Node shows no device of the plugin")
    given = pods.run("by-dra", {GPU: 1}, f"/bin/launcher gpus {GPU}")
    (device,) = devices_of(running.api, "by-dra")
    assert name_of(given.env[GPU_ENV]) == device
    assert given.env[GPU_ENV] in free
    assert given.nodes == {"/dev/vfio/vfio", f"/dev/vfio/{GROUPS[given.env[GPU_ENV]]}"}
    pods.delete("by-plugin")
    await_devices(running.api, map(name_of, (FIRST, SECOND, THIRD)))
    assert allocatable(running) == 0
    others = pods.run("others", {GPU: 2}).env[GPU_ENV].split(",")
    assert {given.env[GPU_ENV], *others} == {FIRST, SECOND, THIRD}
