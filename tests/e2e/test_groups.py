# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups on a real Node: what a pod takes is missing in the counts of its siblings."""

from __future__ import annotations

from tests.e2e import waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, GROUPS, SECOND, only, rule

GPU, AUDIO = "example.com/gpu", "example.com/audio"
AUDIO_OF = {address: address.replace(".0", ".1") for address in GROUPS}


def start(running: Cluster, daemon: Daemon) -> None:
    """Offer two GPUs and their audio functions as two resources."""
    daemon.configure(
        only(rule(GPU, FIRST, SECOND), rule(AUDIO, *(AUDIO_OF[address] for address in (FIRST, SECOND))))
    )
    daemon.start()
    running.await_counts(GPU, 2, 2)
    running.await_counts(AUDIO, 2, 2)


def test_the_sibling_of_a_held_device_is_not_allocatable_until_the_pod_is_deleted(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    start(running, daemon)
    held = pods.run("holder", {GPU: 1}).env["PCI_RESOURCE_EXAMPLE_COM_GPU"]
    running.await_counts(AUDIO, 2, 1)
    running.await_counts(GPU, 2, 2)
    sibling = daemon.device(AUDIO_OF[held])
    assert "default/holder" in sibling["message"]
    pods.delete("holder")
    running.await_counts(AUDIO, 2, 2)  # nothing else happens on the host


def test_one_pod_may_take_two_devices_of_one_group_through_two_resources(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    daemon.configure(only(rule(GPU, FIRST), rule(AUDIO, AUDIO_OF[FIRST])))
    daemon.start()
    running.await_counts(GPU, 1, 1)
    running.await_counts(AUDIO, 1, 1)
    given = pods.run("whole", {GPU: 1, AUDIO: 1})
    assert given.env["PCI_RESOURCE_EXAMPLE_COM_GPU"] == FIRST
    assert given.env["PCI_RESOURCE_EXAMPLE_COM_AUDIO"] == AUDIO_OF[FIRST]
    assert given.nodes == {"/dev/vfio/vfio", f"/dev/vfio/{GROUPS[FIRST]}"}


def test_a_group_stays_held_over_a_restart_of_the_daemon(
    running: Cluster, daemon: Daemon, pods: Pods
) -> None:
    start(running, daemon)
    pods.run("holder", {GPU: 1})
    running.await_counts(AUDIO, 2, 1)
    daemon.stop()
    waiting.until(lambda: running.counts(AUDIO) == (2, 0), "the Node has noticed that the daemon is away")
    daemon.start()
    running.await_counts(AUDIO, 2, 1)
