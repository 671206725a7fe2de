# SPDX-License-Identifier: Apache-2.0
"""The newest configuration is merged and published; what says the same wakes nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio

from nodeagent import config
from nodeagent.agent.config_loop import SpecMerger
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.latest import Latest
from nodeagent.config import Settings, Sources, Timing
from nodeagent.model.configuration import Configuration, KubeVirt, Node
from nodeagent.model.host import Host
from nodeagent.model.kubevirt import ClusterConfig
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import PciRule
from tests.cluster import crs

HOSTNAME = "kubernetes.io/hostname"


def settings(root: Path, configuration: Configuration) -> Settings:
    return replace(config.load(Sources(str(root), {}, {})), configuration=configuration)


async def test_the_newest_configuration_is_merged_and_published_beside_the_rest(tmp_path: Path) -> None:
    cell = Latest(settings(tmp_path, Configuration(node=Node("a"))))
    snapshots = Snapshots(Snapshot(host=Host(iommu=True)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(SpecMerger(cell, Latest(ClusterConfig()), snapshots).run)
        with anyio.fail_after(5):
            seen, snapshot = await snapshots.newer(0)
            assert snapshot.spec.labels == ((HOSTNAME, "a"),)
            cell.set(settings(tmp_path, Configuration(rules=(PciRule("a.b/c"),), node=Node("b"))))
            _, snapshot = await snapshots.newer(seen)
        tasks.cancel_scope.cancel()
    assert snapshot.spec.labels == ((HOSTNAME, "b"),)
    assert snapshot.spec.rules == (PciRule("a.b/c"),)
    assert snapshot.host.iommu


async def test_settings_that_desire_the_same_wake_nobody(tmp_path: Path) -> None:
    first = settings(tmp_path, Configuration(node=Node("a")))
    cell, snapshots = Latest(first), Snapshots(Snapshot())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(SpecMerger(cell, Latest(ClusterConfig()), snapshots).run)
        await anyio.wait_all_tasks_blocked()
        version, before = snapshots.version, snapshots.now
        cell.set(replace(first, timing=Timing(2.0, 3.0, 4.0)))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert snapshots.version == version
    assert snapshots.now.spec is before.spec


async def test_what_the_cluster_says_is_merged_too_if_the_settings_let_it_count(tmp_path: Path) -> None:
    cell = Latest(settings(tmp_path, Configuration(node=Node("a"), kubevirt=KubeVirt("true"))))
    cluster, snapshots = Latest(ClusterConfig()), Snapshots(Snapshot())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(SpecMerger(cell, cluster, snapshots).run)
        await anyio.wait_all_tasks_blocked()
        cluster.set(ClusterConfig(crs.read({"pciHostDevices": [crs.external(crs.T4)]}), {"a": "b"}))
        await anyio.wait_all_tasks_blocked()
        spec = snapshots.now.spec
        assert [rule.name for rule in spec.rules] == [crs.T4["resourceName"]]
        assert spec.labels == (("a", "b"),)
        cell.set(settings(tmp_path, Configuration(kubevirt=KubeVirt("false"))))
        await anyio.wait_all_tasks_blocked()
        assert snapshots.now.spec.rules == ()
        tasks.cancel_scope.cancel()
