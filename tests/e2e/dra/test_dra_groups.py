# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups by DRA: the scheduler itself keeps two pods from sharing one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e import waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.dra import reading
from tests.e2e.dra.objects import DRIVER, Objects, devices_of, event, from_template, pod, request
from tests.e2e.dra.settings import PATIENCE, by_dra, launch
from tests.e2e.dra.slices import devices, name_of
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, GROUPS, SECOND, rule

pytestmark = pytest.mark.timeout(300)

GPU, AUDIO, BOARD = "example.com/gpu", "example.com/audio", "example.com/board"
REFUSED = "cannot allocate all claims"  # of the scheduler
ROUNDS, CROWD = 5, 8


def audio_of(gpu: str) -> str:
    """The audio function in the group of a GPU."""
    return gpu.replace(".0", ".1")


def board_of(gpu: str) -> str:
    """The name of the device that has all functions of a group."""
    return name_of(gpu).replace("pci-", "board-")


def group_of(device: str) -> str:
    """The part of a device's name that all functions of its group have."""
    return device.partition("-")[2].rpartition("-")[0]


def explained(driver: Daemon, *arguments: str) -> str:
    """What ``nodeagent explain`` prints."""
    command = [sys.executable, "-m", "nodeagent", "--root", str(driver.host), "explain", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(driver.source.parent)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def start(running: Cluster, driver: Daemon, *gpus: str) -> None:
    """Publish GPUs and their audio functions; the scheduler may give one of a group, or the board."""
    audio = map(audio_of, gpus)
    names = [name_of(address) for gpu in gpus for address in (gpu, audio_of(gpu))]
    rules = (by_dra(GPU, *gpus), by_dra(AUDIO, *audio))
    found = launch(running, driver, [*names, *map(board_of, gpus)], *rules)
    assert all(device["consumesCounters"] for device in found.values())


def test_the_sibling_of_a_claimed_function_waits_in_the_scheduler(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    start(running, driver, FIRST)
    objects.template("gpu", request("gpu", objects.device_class("gpu", GPU)))
    objects.template("audio", request("audio", objects.device_class("audio", AUDIO)))
    pods.create(pod("holder", gpu=from_template("gpu")))
    pods.given("holder")
    pods.create(pod("sibling", audio=from_template("audio")))
    message = waiting.until(lambda: event(running.api, "sibling", "FailedScheduling"), "it is Pending")
    assert REFUSED in message
    text = explained(driver, audio_of(FIRST))
    assert "IOMMU group in use by claim default/holder" in text
    pods.delete("holder")
    assert pods.given("sibling").nodes == {"/dev/vfio/vfio", f"/dev/vfio/{GROUPS[FIRST]}"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_of_eight_pods_at_once_one_runs_in_each_of_two_groups(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    start(running, driver, FIRST, SECOND)
    for name, resource in (("gpu", GPU), ("audio", AUDIO)):
        objects.template(name, request("part", objects.device_class(name, resource)))
    for number in range(ROUNDS):
        crowd(running, pods, [f"crowd-{number}-{each}" for each in range(CROWD)])


def crowd(running: Cluster, pods: Pods, names: list[str]) -> None:
    """Make pods for half of a group each, and see that one runs in each group; delete them."""
    for index, name in enumerate(names):
        pods.create(pod(name, part=from_template(("gpu", "audio")[index % 2])))
    waiting.until(lambda: len(phases(pods, names, "Running")) == 2, "two pods run", PATIENCE)
    run = phases(pods, names, "Running")
    refused = [name for name in names if name not in run]
    waiting.until(
        lambda: all(event(running.api, name, "FailedScheduling") for name in refused),
        "all others are refused",
    )
    allocated = [device for name in names for device in devices_of(running.api, name)]
    assert sorted(map(group_of, allocated)) == sorted(group_of(name_of(gpu)) for gpu in (FIRST, SECOND))
    assert phases(pods, names, "Pending") == refused
    pods.delete(*refused)  # before the others, since the scheduler would give them the devices
    pods.delete(*run)


def phases(pods: Pods, names: list[str], phase: str) -> list[str]:
    """The pods in that phase."""
    return [name for name in names if pods.get(name)["status"]["phase"] == phase]


def test_a_vm_gets_all_functions_of_a_board_by_one_request(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    both = [address for gpu in (FIRST, SECOND) for address in (gpu, audio_of(gpu))]
    boards = (board_of(FIRST), board_of(SECOND))
    launch(running, driver, boards, by_dra(BOARD, *both, isolation="bundle"))
    objects.template("board", request("board", objects.device_class("board", BOARD)))
    reader = "/bin/launcher claims vm/board vm/board-1"
    pods.create(pod("vm", reader, vm=from_template("board")))
    given = pods.given("vm")
    (device,) = devices_of(running.api, "vm")
    (lead,) = [gpu for gpu in (FIRST, SECOND) if board_of(gpu) == device]
    assert reading.host_devices(given) == [lead, audio_of(lead)]
    assert given.nodes == {"/dev/vfio/vfio", f"/dev/vfio/{GROUPS[lead]}"}


def test_without_isolation_one_claim_has_two_functions_of_one_group(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    free: dict[str, object] = {"isolation": "none"}
    rules = (by_dra(GPU, FIRST, **free), by_dra(AUDIO, audio_of(SECOND), audio_of(FIRST), **free))
    launch(running, driver, map(name_of, (FIRST, audio_of(FIRST), audio_of(SECOND))), *rules)
    objects.template(
        "pair",
        request("gpu", objects.device_class("gpu", GPU)),
        request("audio", objects.device_class("audio", AUDIO)),
        constraints=[{"matchAttribute": f"{DRIVER}/iommuGroup"}],
    )
    pods.create(pod("pair", "/bin/launcher claims vm/gpu vm/audio", vm=from_template("pair")))
    assert reading.host_devices(pods.given("pair")) == [FIRST, audio_of(FIRST)]
    pods.create(pod("second", vm=from_template("pair")))
    message = waiting.until(lambda: event(running.api, "second", "FailedScheduling"), "it is Pending")
    assert REFUSED in message


def test_a_group_is_never_shared_by_a_claim_and_a_pod_of_the_device_plugin(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    audio = name_of(audio_of(FIRST))
    launch(running, driver, [audio], rule(GPU, FIRST), by_dra(AUDIO, audio_of(FIRST)))
    running.await_counts(GPU, 1, 1)
    objects.template("audio", request("audio", objects.device_class("audio", AUDIO)))
    pods.run("by-plugin", {GPU: 1})
    taint = waiting.until(lambda: devices(running.api)[audio].get("taints"), "the function is tainted")
    assert [each["key"] for each in taint] == [f"{DRIVER}/group-held"]
    pods.create(pod("by-claim", audio=from_template("audio")))
    waiting.until(lambda: event(running.api, "by-claim", "FailedScheduling"), "it is Pending")
    pods.delete("by-plugin")
    pods.given("by-claim")
    running.await_counts(GPU, 1, 0)
    assert "claim default/by-claim-audio" in driver.device(FIRST)["message"]
    pods.delete("by-claim")
    running.await_counts(GPU, 1, 1)
