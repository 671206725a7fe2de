# SPDX-License-Identifier: Apache-2.0
"""Nobody reads what the daemon says, or nobody can: it works all the same, and ends when told to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.harness import PATIENCE, T4, Node, pod, until_health

_TO_FIFO = ("sh", "-c", 'exec "$@" 2>"$FIFO"', "sh")
_CLOSED = ("sh", "-c", 'exec "$@" 2>&-', "sh")
_FULL_DISK = ("sh", "-c", 'exec "$@" 2>/dev/full', "sh")


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    """A FIFO that is full, and has a reader that does not read."""
    path = tmp_path / "stderr"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(reader, b"\n")
    yield path
    os.close(reader)


async def works(node: Node, under: tuple[str, ...], environ: dict[str, str]) -> None:
    """The daemon gives a device away, notices what happens, and ends well."""
    node.add_gpus(2)
    async with node.kubelet() as kubelet, node.daemon(under=under, environ=environ, ready=False) as daemon:
        await kubelet.until_listed(T4, 2, PATIENCE)
        assert (await kubelet.admit(pod("vm", {T4: 1}))).phase == "Running"
        node.host.bind("0000:11:00.0", None)
        await until_health(kubelet, T4, "0000:11:00.0", "Unhealthy")
        assert await daemon.end() == 0


async def test_a_reader_of_stderr_that_hangs_stops_nothing(node: Node, hung: Path) -> None:
    await works(node, _TO_FIFO, {"FIFO": str(hung)})


@pytest.mark.parametrize("under", [_CLOSED, _FULL_DISK], ids=["closed", "on a full disk"])
async def test_a_stderr_that_takes_nothing_is_no_reason_to_end(node: Node, under: tuple[str, ...]) -> None:
    await works(node, under, {})
