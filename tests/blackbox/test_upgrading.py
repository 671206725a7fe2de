# SPDX-License-Identifier: Apache-2.0
"""An upgrade under a running daemon: each version's code has a directory of its own, which goes with it.

What is loaded when it is first wanted is of the version that runs, or the daemon ends, for its successor.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

import nodeagent
from tests.blackbox.harness import PATIENCE, Node
from tests.facts import names

WISHES = "mdevs: {manage: true, types: [nvidia-222]}\n"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A directory with the package of its own."""
    directory = tmp_path / "code"
    there = Path(nodeagent.__file__).parent
    shutil.copytree(there, directory / "nodeagent", ignore=shutil.ignore_patterns("__pycache__"))
    return directory


def installed(code: Path) -> dict[str, str]:
    """The environment of a daemon that is run from there, and from nowhere else."""
    return {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}


async def test_a_daemon_whose_code_is_gone_ends_when_it_wants_more_of_it(node: Node, code: Path) -> None:
    node.add_gpus(1)
    async with node.daemon(environ=installed(code)) as daemon:
        shutil.rmtree(code)
        node.configure(WISHES)
        with anyio.fail_after(PATIENCE):
            assert await daemon.process.wait() == 1
        first, second = daemon.raw[-2:]
        names(first, "upgraded")
        names(second, "systemd")
        assert node.sockets() == []
        assert daemon.lines("subsystem-failed") == []


async def test_a_daemon_whose_code_is_gone_serves_on_while_it_wants_no_more_of_it(
    node: Node, code: Path
) -> None:
    node.add_gpus(1)
    async with node.daemon(environ=installed(code)) as daemon:
        await node.until_told(lambda told: bool(told["pciIds"]))  # the names of devices are read
        shutil.rmtree(code)
        node.host.remove_node("/dev/vfio/10")
        await daemon.logged("device-unhealthy")
        assert await daemon.end() == 0
