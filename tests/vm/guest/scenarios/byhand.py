# SPDX-License-Identifier: Apache-2.0
"""``nodeagent bind`` and ``release`` on a real kernel: asked of the daemon, or done by the verb itself.

As in ``passthrough``, each scenario gives its functions to the host's drivers first.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio import to_thread

from tests.vm.guest import pci, vfio
from tests.vm.guest.node import HEALTHY, Mode, Node, until

_HOST_DRIVER = "e1000e"
_TEST_DEVICE = "1b36:0005"
_BOUND = (pci.VFIO, pci.VFIO)  # driver and override
_MOUNTED = Path("/run/data")
_FINE, _REFUSED = 0, 3


async def a_daemon_binds_and_gives_back_what_it_is_asked_for_by_hand(node: Node) -> None:
    """Shown first, then done; bound again after remove and rescan; not given back while it is open."""
    async with _on_their_own_drivers([node.alone]):
        assert f"would be done: bind {node.alone}" in await _says(_FINE, "bind", node.alone, "--dry-run")
        assert _states([node.alone]) == [(_HOST_DRIVER, None)]
        assert f"done: bind {node.alone} to vfio-pci" in await _says(_FINE, "bind", node.alone)
        assert _states([node.alone]) == [_BOUND]
        await node.until(node.alone, HEALTHY)
        await _removed_and_found_again(node.alone)
        await until(lambda: _states([node.alone]) == [_BOUND], "it is bound again")
        await until(lambda: vfio.has_node(pci.group(node.alone)), "it can be opened")
        with vfio.held(node.alone, pci.group(node.alone)):
            assert f"{node.alone} open" in await _says(_REFUSED, "release", node.alone)
            assert _states([node.alone]) == [_BOUND]
        assert "done: " in await _says(_FINE, "release", node.alone)
        assert _states([node.alone]) == [(_HOST_DRIVER, None)]


async def a_daemon_binds_the_group_of_what_a_name_fits(node: Node) -> None:
    """One function of three is named by its ids; the first two are of another kind."""
    trio = [node.first, node.second, node.third]
    async with _on_their_own_drivers(trio):
        before = _states(trio)
        assert before == [(_HOST_DRIVER, None), (_HOST_DRIVER, None), (None, None)]
        assert f"done: bind {', '.join(trio)} to vfio-pci" in await _says(_FINE, "bind", _TEST_DEVICE)
        assert _states(trio) == [_BOUND] * 3
        assert "give back" in await _says(_FINE, "release", node.first, "--dry-run")
        assert _states(trio) == [_BOUND] * 3
        assert "done: " in await _says(_FINE, "release", node.first)
        assert _states(trio) == before


async def a_hand_is_refused_a_group_with_a_mounted_disk(node: Node) -> None:
    """The mount point is named, and no driver and no override is touched; the same without a daemon."""
    async with _mounted(node) as name:
        await _refused(node, name)
        await node.stop_daemon()
        await _refused(node, name)


async def a_verb_binds_and_gives_back_without_a_daemon(node: Node) -> None:
    """What it has bound the daemon that comes next looks after, and gives back when it is asked."""
    await node.stop_daemon()
    pattern = f"{node.alone[5:-1]}*"
    async with _on_their_own_drivers([node.alone]):
        assert f"would be done: bind {node.alone}" in await _says(_FINE, "bind", pattern, "--dry-run")
        assert _states([node.alone]) == [(_HOST_DRIVER, None)]
        assert f"done: bind {node.alone} to vfio-pci" in await _says(_FINE, "bind", pattern)
        assert _states([node.alone]) == [_BOUND]
        assert "done: " in await _says(_FINE, "release", pattern)
        assert _states([node.alone]) == [(_HOST_DRIVER, None)]
        await _says(_FINE, "bind", node.alone)
        await _removed_and_found_again(node.alone)
        await until(lambda: _states([node.alone]) == [(_HOST_DRIVER, None)], "nobody has bound it again")
        await node.start_daemon(Mode.POLL)
        await until(lambda: _states([node.alone]) == [_BOUND], "the daemon has bound it")
        await node.until(node.alone, HEALTHY)
        assert "done: " in await _says(_FINE, "release", node.alone)


async def _refused(node: Node, name: str) -> None:
    both = [node.disk, node.beside_disk]
    before = _states(both)
    assert [driver for driver, _ in before] == ["nvme", _HOST_DRIVER]
    said = await _says(_REFUSED, "bind", node.beside_disk)
    assert name in said
    assert str(_MOUNTED) in said
    assert _states(both) == before


async def _says(code: int, *words: str) -> str:
    """What the verb prints; it must end with that code."""
    command = [sys.executable, "-m", "nodeagent", *words]
    with anyio.fail_after(60):
        done = await anyio.run_process(command, check=False, stderr=subprocess.STDOUT)
    said = done.stdout.decode()
    print(f"    {' '.join(words)}: {said.splitlines()[-1:]}", flush=True)
    assert done.returncode == code, said
    return said


def _states(functions: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Driver and override of each."""
    return [(pci.driver(each), pci.override(each)) for each in functions]


async def _until_on(functions: Sequence[str], drivers: Sequence[str | None]) -> None:
    await until(lambda: [pci.driver(each) for each in functions] == [*drivers], f"{functions} on {drivers}")


@asynccontextmanager
async def _on_their_own_drivers(functions: Sequence[str]) -> AsyncIterator[None]:
    for address in functions:
        await to_thread.run_sync(pci.home, address)
    await until(lambda: not any(map(pci.override, functions)), "none has an override")
    yield
    assert [pci.override(address) for address in functions] == [None] * len(functions)


async def _removed_and_found_again(address: str) -> None:
    await to_thread.run_sync(pci.remove, address)
    await to_thread.run_sync(pci.rescan)
    await until(lambda: pci.exists(address), f"{address} is there again")


@asynccontextmanager
async def _mounted(node: Node) -> AsyncIterator[str]:
    """The disk of the node is mounted; its name."""
    await _until_on([node.disk, node.beside_disk], ["nvme", _HOST_DRIVER])
    name = pci.disk(node.disk)
    await anyio.run_process(["mkfs.ext4", "-q", f"/dev/{name}"])
    await anyio.Path(_MOUNTED).mkdir(exist_ok=True)
    await anyio.run_process(["mount", f"/dev/{name}", str(_MOUNTED)])
    try:
        yield name
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.run_process(["umount", str(_MOUNTED)])
