# SPDX-License-Identifier: Apache-2.0
"""CDI files and the resources that ask for them: written, told when they cannot be, written anew."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.offering import Offering
from nodeagent.agent.releases import Releases
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet import cdi
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Iommufd
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Discovery, PciRule, PciSelector, Spec
from tests.agent.parts import Eyes
from tests.conftest import Said
from tests.sim import hosts

GPU = ResourceName("example.com/gpu")


RULE = PciRule(GPU, (PciSelector(vendors=("10de",)),), cdi=True)


class Files:
    """The files of a node with one resource that asks for them."""

    def __init__(self, eyes: Eyes, directory: Path) -> None:
        self.snapshots = eyes.snapshots
        self.offering = Offering(eyes.snapshots, Releases(eyes.settings), Timeouts())
        self.files = CdiFiles(str(directory), eyes.snapshots, self.offering)
        self.path = directory / cdi.file_name(GPU)

    def publish(self, **parts: Any) -> None:
        """Other parts of the Snapshot, and the decision on them."""
        self.snapshots.publish(replace(self.snapshots.now, **parts))
        self.offering.one_turn()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Files]:
    snapshots = Snapshots(Snapshot(spec=Spec(rules=(RULE,))))
    async with Eyes(hosts.many(tmp_path / "host", 2), snapshots).open() as eyes:
        files = Files(eyes, tmp_path / "cdi")
        files.offering.one_turn()
        yield files


async def test_a_resource_that_comes_back_gets_its_file_again(node: Files) -> None:
    for rules in ((RULE,), (), (RULE,)):
        node.publish(spec=Spec(Discovery(enabled=False), rules=rules))
        await node.files.follow()
        assert node.path.exists() is bool(rules)


async def test_a_file_that_is_up_to_date_is_not_written_again(node: Files) -> None:
    await node.files.follow()
    before = node.path.stat()
    await node.files.follow()
    assert node.path.stat() == before


async def test_a_file_follows_the_host_where_the_resource_stays_the_same(node: Files) -> None:
    """A container that starts again reads it: the nodes of its devices may be others by then."""
    modern = replace(RULE, iommufd=Iommufd.AUTO)
    node.publish(spec=Spec(rules=(modern,)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.files.run)
        with anyio.fail_after(5):
            while not node.path.exists():
                await anyio.lowlevel.checkpoint()
        host = node.snapshots.now.host
        functions = {
            address: function._replace(vfio_device=f"vfio{number}", cdev=True)
            for number, (address, function) in enumerate(host.functions.items())
        }
        node.publish(host=replace(host, functions=functions, nodes=host.nodes | {"/dev/iommu"}))
        with anyio.fail_after(5):
            while "/dev/vfio/devices/vfio1" not in node.path.read_text():
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_what_cannot_be_written_is_a_problem_that_is_logged_once_and_ends(
    node: Files, tmp_path: Path, said: Said
) -> None:
    (tmp_path / "cdi").write_text("in the way")
    for _ in range(2):
        await node.files.follow()
    (problem,) = node.files.problems
    assert problem.message.startswith(f"{GPU}: the CDI file {tmp_path}/cdi/")
    (line,) = said(log.CDI_FAILED)
    assert f"{log.CDI_FAILED.text.format(**line)}; {line['hint']}" == problem.message
    (tmp_path / "cdi").unlink()
    await node.files.follow()
    assert node.files.problems == ()
    assert node.path.exists()


async def test_of_two_that_want_to_write_a_file_the_newest_decision_stays(node: Files) -> None:
    """A write takes time: what was decided meanwhile is written after it, by whoever comes next."""
    first, second = node.snapshots.now.host.functions.values()
    async with anyio.create_task_group() as group:
        group.start_soon(node.files.follow)
        await anyio.lowlevel.checkpoint()
        host = node.snapshots.now.host
        gone = second._replace(driver="nouveau", vfio=False)
        node.publish(host=replace(host, functions={first.address: first, second.address: gone}))
        group.start_soon(node.files.ensure, GPU, [first.address])
    assert [each["name"] for each in json.loads(node.path.read_text())["devices"]] == [first.address]
