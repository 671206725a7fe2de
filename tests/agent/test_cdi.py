# SPDX-License-Identifier: Apache-2.0
"""CDI files and the resources that ask for them: written, told when they cannot be, written anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent import settings
from nodeagent.agent import inspect
from nodeagent.agent.cdi import CdiFiles
from nodeagent.base import log
from nodeagent.demo import nodes
from nodeagent.kernel.root import Root
from nodeagent.kubelet import cdi
from nodeagent.model.ids import ResourceName
from nodeagent.policy.turn import Outcome
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
async def outcome(host: str) -> Outcome:
    """A decision with one resource that asks for a file."""
    return await inspect.inspect(Root(host), settings.load(host, {}, {}))


@pytest.fixture
def files(tmp_path: Path) -> CdiFiles:
    return CdiFiles(str(tmp_path / "cdi"))


async def test_a_resource_that_comes_back_gets_its_file_again(
    files: CdiFiles, tmp_path: Path, outcome: Outcome
) -> None:
    for resources in (outcome.resources, {}, outcome.resources):
        await files.follow(resources, outcome)
        assert (tmp_path / "cdi" / cdi.file_name(GPU)).exists() is bool(resources)


async def test_a_file_that_is_up_to_date_is_not_written_again(
    files: CdiFiles, tmp_path: Path, outcome: Outcome
) -> None:
    await files.follow(outcome.resources, outcome)
    before = (tmp_path / "cdi" / cdi.file_name(GPU)).stat()
    await files.follow(outcome.resources, outcome)
    assert (tmp_path / "cdi" / cdi.file_name(GPU)).stat() == before


async def test_what_cannot_be_written_is_a_problem_that_is_logged_once_and_ends(
    files: CdiFiles, tmp_path: Path, outcome: Outcome, said: Said
) -> None:
    (tmp_path / "cdi").write_text("in the way")
    for _ in range(2):
        await files.follow(outcome.resources, outcome)
    (problem,) = files.problems
    assert problem.startswith(f"{GPU}: the CDI file {tmp_path}/cdi/")
    assert len(said(log.CDI_FAILED)) == 1
    (tmp_path / "cdi").unlink()
    await files.follow(outcome.resources, outcome)
    assert files.problems == ()
    assert (tmp_path / "cdi" / cdi.file_name(GPU)).exists()
