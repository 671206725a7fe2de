# SPDX-License-Identifier: Apache-2.0
"""Stale resources by a fake API server that fails in each way, in virtual time: when, and how often."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from nodeagent.agent import core as cores
from nodeagent.agent.cluster import stale
from nodeagent.agent.cluster.stale import StaleResources
from nodeagent.agent.core import Core
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model import resource
from nodeagent.model.host import Kind
from nodeagent.model.ids import ResourceName
from nodeagent.model.status import ClusterStatus, StaleStatus
from nodeagent.sim.apiserver.server import FakeApiServer, Refusal
from nodeagent.sim.apiserver.store import NODES
from tests import virtual
from tests.agent.cluster.telling import DEFAULTS, NAME, living
from tests.cluster.following import served

OLD, OTHER = "example.com/old", "example.com/other"
MINUTES = 40 * 60.0
DUE = Timeouts().stale_resource_settle + Timeouts().stale_resource_spread / 2


class Standing:
    """The server, the task, and the kubelet's file."""

    def __init__(self, server: FakeApiServer, core: Core, task: StaleResources, file: Path) -> None:
        self.server = server
        self.core = core
        self.task = task
        self.labels: dict[str, str] = {}
        self._file = file
        file.parent.mkdir(parents=True)

    def knows(self, *names: str) -> None:
        """The kubelet knows these resources."""
        data: dict[str, object] = {
            "RegisteredDevices": {name: [] for name in names},
            "PodDeviceEntries": None,
        }
        self._file.write_text(json.dumps({"Data": data}))

    def count(self, **more: str) -> None:
        """The Node counts what was offered as 0, and more."""
        counts = {OLD: "0", OTHER: "0"} | more
        status = {"capacity": counts, "allocatable": dict(counts)}
        self.server.store.put(NODES, {"metadata": {"name": NAME, "labels": self.labels}, "status": status})

    @property
    def counted(self) -> set[str]:
        """What the Node counts."""
        return set((self.server.store.get(NODES, NAME) or {})["status"]["capacity"])

    @property
    def patches(self) -> int:
        """How often something was patched."""
        return sum(each.method == "PATCH" for each in self.server.statistics.requests)

    @property
    def told(self) -> ClusterStatus:
        """The status of the task."""
        return self.task.add_status(ClusterStatus())


@asynccontextmanager
async def standing(folder: Path) -> AsyncIterator[Standing]:
    """A task that removes: OLD and OTHER were offered here once, and the kubelet knows both."""
    settings = replace(DEFAULTS, cluster=DEFAULTS.cluster._replace(stale_resources="remove"))
    core = cores.build(Root(str(folder)), Latest(settings), Timeouts())
    task = StaleResources(core, lambda: 0.5)
    await task.learn_names((OLD, OTHER))
    try:
        async with served() as server:
            file = folder / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
            made = Standing(server, core, task, file)
            made.knows(OLD, OTHER)
            made.count()
            async with living(task, server, folder):
                yield made
    finally:
        core.watcher.close()


@virtual.TIME
async def test_what_the_kubelet_knows_is_never_touched(tmp_path: Path) -> None:
    async with standing(tmp_path) as made:
        await anyio.sleep(MINUTES)
        assert {each.message for each in made.told.stale} == {stale.KNOWN}
        assert (made.counted, made.patches) == ({OLD, OTHER}, 0)


@virtual.TIME
async def test_what_it_has_forgotten_goes_after_a_moment_and_once(tmp_path: Path) -> None:
    async with standing(tmp_path) as made:
        await anyio.sleep(1.0)  # it has looked
        made.knows(OTHER)
        await anyio.sleep(64.0)  # until the file is read again
        assert made.counted == {OLD, OTHER}
        assert StaleStatus(OLD) in made.told.stale
        await anyio.sleep(DUE)
        assert made.counted == {OTHER}
        assert made.told.stale_removed == (OLD,)
        made.count()
        await anyio.sleep(MINUTES)
        assert StaleStatus(OLD, stale.BACK) in made.told.stale
        assert made.patches == 1


@virtual.TIME
async def test_a_name_that_gets_devices_meanwhile_stays(tmp_path: Path) -> None:
    async with standing(tmp_path) as made:
        made.knows()
        await anyio.sleep(65.0)
        made.count(**{OLD: "2"})
        await anyio.sleep(MINUTES)
        assert made.counted == {OLD}, "the other one went"
        assert made.told.stale_removed == (OTHER,)


@virtual.TIME
async def test_a_file_that_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    async with standing(tmp_path) as made:
        made.knows()
        (tmp_path / "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint").write_text("{")
        await anyio.sleep(MINUTES)
        assert {each.message for each in made.told.stale} == {stale.UNKNOWN}
        assert made.patches == 0


@pytest.mark.parametrize(
    ("code", "most"), [(401, 120), (403, 6), (404, 45), (409, 120), (422, 45), (429, 120), (500, 120)]
)
@virtual.TIME
async def test_a_server_that_refuses_is_not_asked_often(tmp_path: Path, code: int, most: int) -> None:
    async with standing(tmp_path) as made:
        made.knows()
        made.server.faults.set("status:nodes", Refusal(code, method="PATCH"))
        await anyio.sleep(MINUTES)
        print(f"{code}: {made.patches} in {MINUTES / 60:.0f} minutes")
        assert 1 <= made.patches <= most
        assert made.counted == {OLD, OTHER}
        assert bool(made.told.write_errors) == (code == 403)
        made.server.faults.clear("status:nodes")
        await anyio.sleep(700.0)
        assert made.counted == set()
        assert made.told.write_errors == ()


@pytest.mark.parametrize("code", [404, 409, 422, 429, 500])
@virtual.TIME
async def test_a_server_that_refuses_is_not_asked_more_often_because_the_node_changes(
    tmp_path: Path, code: int
) -> None:
    async with standing(tmp_path) as made:
        made.knows()
        made.server.faults.set("status:nodes", Refusal(code, method="PATCH", after=60 * (code == 429)))
        await anyio.sleep(65.0 + DUE)
        for number in range(300):
            made.labels["example.com/number"] = str(number)
            made.count()
            await anyio.sleep(1.0)
        print(f"{code}: {made.patches} in 5 minutes")
        assert 1 <= made.patches <= (8 if code == 429 else 30)


@virtual.TIME
async def test_a_name_that_is_offered_again_while_another_is_removed_stays(tmp_path: Path) -> None:
    async with standing(tmp_path) as made:
        made.knows()
        made.server.faults.set("slow:nodes", 8.0)
        await made.server.until(lambda: made.patches > 0, MINUTES)
        name = ResourceName(OTHER)
        made.core.offering.of_plugins.set({name: resource.Resource(name, Kind.PCI)})
        await anyio.sleep(MINUTES)
        assert made.counted == {OTHER}
        assert made.patches == 1


@virtual.TIME
async def test_a_name_that_is_advertised_by_dra_only_is_removed(tmp_path: Path) -> None:
    async with standing(tmp_path) as made:
        made.knows()
        name = ResourceName(OTHER)
        made.core.offering.resources.set({name: resource.Resource(name, Kind.PCI, via=resource.Via.DRA)})
        await anyio.sleep(MINUTES)
        assert made.counted == set()


@pytest.mark.parametrize(
    ("offered", "known", "removed", "why"),
    [
        ((), frozenset[str](), (), ""),
        ((), frozenset({"example.com/other"}), (), ""),
        ((), frozenset({OLD}), (), stale.KNOWN),
        ((), frozenset({OLD}), (OLD,), stale.KNOWN),
        ((), None, (), stale.UNKNOWN),
        ((), frozenset[str](), (OLD,), stale.BACK),
        ((OLD,), frozenset[str](), (), None),
        ((OLD,), None, (OLD,), None),
    ],
)
def test_a_name_that_counts_nothing(
    offered: tuple[str, ...], known: frozenset[str] | None, removed: tuple[str, ...], why: str | None
) -> None:
    wanted = () if why is None else (StaleStatus(OLD, why),)
    assert tuple(stale.find_stale((OLD,), offered, known, removed)) == wanted


def test_what_counts_something_is_nobody_s_to_judge() -> None:
    assert tuple(stale.find_stale((), (), frozenset())) == ()
