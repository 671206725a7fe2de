# SPDX-License-Identifier: Apache-2.0
"""CDI files and the resources that ask for them: written, told when they cannot be, written anew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from nodeagent import config
from nodeagent.agent import oneshot
from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.base import log
from nodeagent.kernel.root import Root
from nodeagent.kubelet import cdi
from nodeagent.model.ids import ResourceName
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.turn import Decision
from nodeagent.sim import nodes
from tests.conftest import Said

GPU = ResourceName("example.com/gpu")
CONFIG = (
    "apiVersion: nodeagent/v1\nresources: [{name: example.com/gpu, cdi: true, pci: [{vendors: ['10de']}]}]\n"
)


@pytest.fixture
def host(tmp_path: Path) -> str:
    made = nodes.many(tmp_path / "host", 2)
    directory = tmp_path / "host/etc/nodeagent"
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(CONFIG)
    return made.directory


@pytest.fixture
async def decision(host: str) -> Decision:
    """A decision with one resource that asks for a file."""
    return turn.first(await oneshot.snapshot(Root(host), config.load(host, {}, {}).desired))


@pytest.fixture
def newest(decision: Decision) -> list[Decision]:
    """The newest outcome is the last."""
    return [decision]


@pytest.fixture
def files(tmp_path: Path, newest: list[Decision]) -> CdiFiles:
    return CdiFiles(str(tmp_path / "cdi"), lambda: newest[-1])


async def test_a_resource_that_comes_back_gets_its_file_again(
    files: CdiFiles, tmp_path: Path, decision: Decision, newest: list[Decision]
) -> None:
    for resources in (decision.resources, {}, decision.resources):
        newest.append(replace(decision, resources=resources))
        await files.follow()
        assert (tmp_path / "cdi" / cdi.file_name(GPU)).exists() is bool(resources)


async def test_a_file_that_is_up_to_date_is_not_written_again(files: CdiFiles, tmp_path: Path) -> None:
    await files.follow()
    before = (tmp_path / "cdi" / cdi.file_name(GPU)).stat()
    await files.follow()
    assert (tmp_path / "cdi" / cdi.file_name(GPU)).stat() == before


async def test_what_cannot_be_written_is_a_problem_that_is_logged_once_and_ends(
    files: CdiFiles, tmp_path: Path, said: Said
) -> None:
    (tmp_path / "cdi").write_text("in the way")
    for _ in range(2):
        await files.follow()
    (problem,) = files.problems
    assert problem.startswith(f"{GPU}: the CDI file {tmp_path}/cdi/")
    assert len(said(log.CDI_FAILED)) == 1
    (tmp_path / "cdi").unlink()
    await files.follow()
    assert files.problems == ()
    assert (tmp_path / "cdi" / cdi.file_name(GPU)).exists()


async def test_of_two_that_want_to_write_a_file_the_newest_outcome_stays(
    files: CdiFiles, tmp_path: Path, decision: Decision, newest: list[Decision]
) -> None:
    """A write takes time: what was decided meanwhile is written after it, by whoever comes next."""
    fewer = replace(decision.resources[GPU], devices=decision.resources[GPU].devices[:1])
    path = tmp_path / "cdi" / cdi.file_name(GPU)
    async with anyio.create_task_group() as group:
        group.start_soon(files.follow)
        await anyio.lowlevel.checkpoint()
        newest.append(replace(decision, resources={GPU: fewer}))
        group.start_soon(files.ensure, GPU, [fewer.devices[0].id])
    assert [each["name"] for each in json.loads(path.read_text())["devices"]] == [fewer.devices[0].id]
