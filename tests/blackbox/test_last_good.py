# SPDX-License-Identifier: Apache-2.0
"""A wrong file at a start: the node offers what it offered before, and says so; or it refuses."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import LASTING, PATIENCE, T4, Node, eventually, run

KEPT = f"/{LASTING}"
GPU, OWN = "example.com/gpu", "example.com/own"
GOOD = f'resources: [{{name: {GPU}, pci: [{{devices: ["1eb8"]}}]}}]'
OTHER = GOOD.replace(GPU, OWN)
BAD = GOOD.replace("devices", "device")
BROKEN = {"an unknown key": BAD, "no YAML": "resources: ["}


async def good_life(node: Node, text: str = GOOD, name: str = "config.yaml") -> None:
    """A daemon that has run with these settings."""
    node.add_gpus(1)
    node.configure(text, name)
    async with node.running(listed={GPU: 1}):
        await eventually(lambda: node.has(KEPT))


def resources(kubelet: FakeKubelet) -> set[str]:
    return {name for name, devices in kubelet.state.table.devices.items() if devices}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_wrong_file_at_a_start_leaves_the_last_good_settings_in_force(
    node: Node, broken: str
) -> None:
    await good_life(node)
    path = node.configure(BROKEN[broken])
    async with node.running(listed={GPU: 1}) as (daemon, kubelet):
        assert resources(kubelet) == {GPU}
        assert str(path) in (await daemon.logged("config-last-good", level="error"))["error"]
        told = await node.command("status")
        assert told.returncode == 3
        assert str(path) in told.stdout
        assert (await node.command("config", "--check")).returncode == 2
        node.configure(OTHER)
        await daemon.logged("config-valid")
        await kubelet.until_listed(OWN, 1, PATIENCE)
        assert (await node.command("config", "--check")).returncode == 0
        await daemon.logged("config-reloaded", changed="resources")


async def test_a_wrong_drop_in_takes_none_of_the_good_file_away(node: Node) -> None:
    node.configure(GOOD)
    await good_life(node, f"aliases: {{{T4}: {OWN}}}", "conf.d/10.yaml")
    node.configure("aliases: [", "conf.d/10.yaml")
    node.configure("discovery: {enabled: false}")
    async with node.running(listed={GPU: 1}) as (_, kubelet):
        assert resources(kubelet) == {GPU}


async def test_strict_refuses_and_so_does_a_node_that_never_had_good_settings(node: Node) -> None:
    path = node.configure(BAD)
    never = await node.command("run")
    await good_life(node)
    node.configure(BAD)
    for done in (never, await node.command("run", "--strict")):
        assert done.returncode == 2
        assert f"{path}:1" in done.stderr
        assert len(done.stderr.splitlines()) == 2


async def test_a_damaged_copy_is_told_beside_what_is_wrong(node: Node) -> None:
    await good_life(node)
    path = node.configure(BAD)
    damage(Path(node.host.path(KEPT)))
    done = await node.command("run")
    assert done.returncode == 2
    told = [str(path) in done.stderr, f"{node.host.path(KEPT)}: is damaged" in done.stderr]
    assert told == [True, True]


def damage(kept: Path) -> None:
    """Its last letter is missing; until then nobody else may read it."""
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    kept.write_text(kept.read_text()[:-1])


async def test_a_wrong_flag_is_refused_whatever_is_kept(node: Node) -> None:
    await good_life(node)
    done = await run("--root", str(node.root), "run", "--timing-settle", "soon")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
