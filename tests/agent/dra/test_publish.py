# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices are published after the registration, written only if they differ, and corrected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from nodeagent import config
from nodeagent.agent import core as cores
from nodeagent.agent.core import Core
from nodeagent.agent.dra.publish import REPAIRS_AT_ONCE, Publisher
from nodeagent.base import log
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Sources
from nodeagent.kernel.root import Root
from nodeagent.model.claim import ClaimRef
from nodeagent.model.spec import Spec
from nodeagent.sim.apiserver.server import FakeApiServer, Refusal
from nodeagent.sim.apiserver.slices import COUNTERS, TAINTS
from nodeagent.sim.apiserver.store import NODES, RESOURCE_SLICES, Object
from nodeagent.sim.host import SimulatedHost
from tests import virtual
from tests.cluster import following  # noqa: F401  imports the client, which takes no virtual time
from tests.conftest import Said

DRIVER, NODE = "vfio.example.com", "node1"
CONFIG = """\
node: {name: node1}
dra: {driver: vfio.example.com}
resources: [{name: example.com/gpu, via: dra, pci: [{vendors: [10de]}]}]
"""


class Setting:
    """A simulated host, an API server, and a publisher on them."""

    def __init__(self, root: Path, server: FakeApiServer) -> None:
        self.server = server
        self.host = SimulatedHost(root)
        self.root = root
        self.registered: Latest[bool] = Latest(True)
        self.core: Core
        self.publisher: Publisher

    @property
    def slices(self) -> list[Object]:
        """The stored slices."""
        return [*self.server.store.all(RESOURCE_SLICES)]

    @property
    def devices(self) -> list[str]:
        """The names of the devices in all slices."""
        return [device["name"] for each in self.slices for device in each["spec"].get("devices", [])]

    @property
    def writes(self) -> list[str]:
        """The methods of all requests that changed something, without dry runs."""
        requests = self.server.statistics.requests
        return [each.method for each in requests if each.method != "GET" and "dryRun" not in each.query]

    def add_gpus(self, *groups: int) -> None:
        """Add functions, one to each of these groups."""
        for number, group in enumerate(groups):
            address = f"0000:{number // 8 + 1:02x}:00.{number % 8}"
            self.host.add_function(
                address, vendor="10de", device="1eb8", pci_class="030200", driver="vfio-pci", group=group
            )

    def put_node(self) -> str:
        """Create the Node and return its UID."""
        uid: str = self.server.store.put(NODES, {"metadata": {"name": NODE}})["metadata"]["uid"]
        return uid

    async def until(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        """Wait for a state of the API server."""
        await self.server.until(holds, seconds)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A publisher that runs, after the first scan of the host."""
        path = self.root / "etc/nodeagent/config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        kubeconfig = self.server.kubeconfig(self.root / "kubeconfig")
        path.write_text(f"{CONFIG}kubeconfig: {kubeconfig.removeprefix(str(self.root))}\n")
        settings = config.load(Sources(str(self.root), {}, {}))
        self.core = cores.build(Root(str(self.root)), Latest(settings), Timeouts())
        self.publisher = Publisher(self.core, DRIVER, lambda: 0.0)
        try:
            await self.core.observer.scan()
            async with anyio.create_task_group() as group:
                group.start_soon(self.publisher.run, self.registered)
                yield
                group.cancel_scope.cancel()
        finally:
            self.core.watcher.close()


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    async with FakeApiServer() as server:
        yield Setting(tmp_path, server)


def edit(setting: Setting, **spec: Any) -> None:
    """Another program replaces parts of the first slice."""
    (first, *_) = setting.slices
    setting.server.store.put(RESOURCE_SLICES, first | {"spec": first["spec"] | spec})


@virtual.TIME
async def test_nothing_is_published_before_the_kubelet_has_registered_the_driver(setting: Setting) -> None:
    setting.add_gpus(1, 2)
    uid = setting.put_node()
    setting.registered.set(False)
    async with setting.running():
        await anyio.sleep(30)
        assert setting.slices == []
        began = anyio.current_time()
        setting.registered.set(True)
        await setting.until(lambda: len(setting.devices) == 2)
        assert anyio.current_time() - began < 0.5
        (only,) = setting.slices
        assert only["spec"]["pool"] == {"name": f"{DRIVER}/{NODE}", "generation": 1, "resourceSliceCount": 1}
        (owner,) = only["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NODE, uid)


@virtual.TIME
async def test_without_devices_one_empty_slice_is_published(setting: Setting) -> None:
    setting.put_node()
    async with setting.running():
        await setting.until(lambda: len(setting.slices) == 1)
        assert setting.slices[0]["spec"]["pool"]["resourceSliceCount"] == 1
        assert setting.devices == []


@virtual.TIME
async def test_correct_slices_are_not_written_again(setting: Setting) -> None:
    setting.add_gpus(1, 2, 2)
    setting.put_node()
    async with setting.running():
        await setting.until(lambda: len(setting.slices) == 2)  # one of them has counters
        assert setting.writes == ["POST", "POST"]
        await anyio.sleep(60)
    async with setting.running():
        await anyio.sleep(60)
    assert setting.writes == ["POST", "POST"]


@virtual.TIME
async def test_one_changed_device_is_one_request_with_the_same_generation(setting: Setting) -> None:
    setting.add_gpus(*range(1, 131))
    setting.put_node()
    async with setting.running():
        await setting.until(lambda: len(setting.devices) == 130)
        assert [len(each["spec"]["devices"]) for each in setting.slices] == [64, 64, 2]
        setting.host.bind("0000:01:00.0", "nvidia")
        setting.core.scan_requests.add(None)
        await setting.core.observer.scan()
        await anyio.sleep(5)
        assert setting.writes[3:] == ["PUT"]
        assert {each["spec"]["pool"]["generation"] for each in setting.slices} == {1}


@virtual.TIME
async def test_a_deleted_or_edited_slice_is_corrected_at_once(setting: Setting) -> None:
    setting.add_gpus(1)
    setting.put_node()
    async with setting.running():
        await setting.until(lambda: len(setting.devices) == 1)
        (good,) = setting.slices
        await anyio.sleep(60)
        setting.server.store.delete(RESOURCE_SLICES, good["metadata"]["name"])
        await setting.until(lambda: len(setting.devices) == 1, 0.5)
        await anyio.sleep(60)
        edit(setting, devices=[])
        await setting.until(lambda: len(setting.devices) == 1, 0.5)


async def undo_each_write(setting: Setting, times: int) -> Sequence[float]:
    """Edit the slice each time it is correct; return the seconds until each correction."""
    pauses = []
    for _ in range(times):
        await setting.until(lambda: bool(setting.devices), 200.0)
        began = anyio.current_time()
        edit(setting, devices=[])
        await setting.until(lambda: bool(setting.devices), 200.0)
        pauses.append(anyio.current_time() - began)
    return pauses


@virtual.TIME
async def test_corrections_become_rarer_if_another_program_undoes_each_of_them(
    setting: Setting, said: Said
) -> None:
    setting.add_gpus(1)
    setting.put_node()
    async with setting.running():
        pauses = await undo_each_write(setting, 8)
        assert max(pauses[:REPAIRS_AT_ONCE]) <= 1.1
        assert pauses[REPAIRS_AT_ONCE:] == sorted(pauses[REPAIRS_AT_ONCE:])
        assert 20 < pauses[-1] <= 60
        assert len(said(log.DRA_SLICES_CONTESTED)) == 1
        await anyio.sleep(Timeouts().slice_repair_quiet + 1)
        assert max(await undo_each_write(setting, 1)) <= 1.1


@virtual.TIME
async def test_kubelets_that_start_again_and_again_do_not_make_corrections_rarer(setting: Setting) -> None:
    setting.add_gpus(1)
    setting.put_node()
    async with setting.running():
        for _ in range(20):
            await setting.until(lambda: bool(setting.devices))
            await anyio.sleep(2.0)
            setting.registered.touch()
            setting.server.store.delete(RESOURCE_SLICES, setting.slices[0]["metadata"]["name"])
            await setting.until(lambda: bool(setting.devices), 0.2)


@virtual.TIME
async def test_fields_of_disabled_gates_are_never_published_and_named_once(
    setting: Setting, said: Said
) -> None:
    setting.add_gpus(1, 1)
    setting.put_node()
    setting.server.faults.set("gates", {TAINTS, COUNTERS})
    async with setting.running():
        await setting.until(lambda: bool(setting.devices))
        assert setting.devices == ["board-0000-01-00-0"]
        assert setting.writes == ["POST"]
        await anyio.sleep(60)
        assert setting.publisher.missing_gates == {TAINTS, COUNTERS}
    assert setting.writes == ["POST"]
    assert len(said(log.DRA_GATE_MISSING)) == 2


@virtual.TIME
async def test_a_gate_that_is_disabled_later_is_noticed_at_the_next_write(setting: Setting) -> None:
    setting.add_gpus(1, 1)
    setting.put_node()
    async with setting.running():
        await setting.until(lambda: len(setting.slices) == 2)
        setting.server.faults.set("gates", {TAINTS, COUNTERS})
        setting.server.store.delete(RESOURCE_SLICES, setting.slices[0]["metadata"]["name"])
        await setting.until(lambda: setting.devices == ["board-0000-01-00-0"])
        assert len(setting.slices) == 1


@virtual.TIME
async def test_gates_are_tried_again_after_an_upgrade_of_the_api_server(setting: Setting) -> None:
    setting.add_gpus(1, 1)
    setting.put_node()
    setting.server.faults.set("gates", {TAINTS, COUNTERS})
    async with setting.running():
        await setting.until(lambda: setting.devices == ["board-0000-01-00-0"])
        await setting.server.stop()
        setting.server.faults.clear("gates")
        await anyio.sleep(5)
        await setting.server.start()
        await setting.until(lambda: len(setting.devices) == 3, 120.0)
        await anyio.sleep(5)
        assert setting.publisher.missing_gates == frozenset()


@virtual.TIME
async def test_a_node_that_is_created_again_is_the_new_owner(setting: Setting) -> None:
    async with setting.running():
        await anyio.sleep(30)
        assert setting.slices == []
        uid = setting.put_node()
        await setting.until(lambda: bool(setting.slices), 2.0)
        setting.server.store.delete(NODES, NODE)
        for each in setting.slices:  # as the garbage collector does
            setting.server.store.delete(RESOURCE_SLICES, each["metadata"]["name"])
        await anyio.sleep(30)
        new = setting.put_node()
        assert new != uid
        await setting.until(lambda: bool(setting.slices), 2.0)
        assert setting.slices[0]["metadata"]["ownerReferences"][0]["uid"] == new


@virtual.TIME
async def test_the_api_server_is_waited_for(setting: Setting) -> None:
    setting.add_gpus(1)
    setting.put_node()
    await setting.server.stop()
    async with setting.running():
        await anyio.sleep(30)
        await setting.server.start()
        await setting.until(lambda: len(setting.devices) == 1, 60.0)


@virtual.TIME
async def test_a_slice_that_the_authorizer_refuses_for_a_moment_is_soon_tried_again(setting: Setting) -> None:
    setting.put_node()
    setting.server.faults.set("status:resourceslices", Refusal(403, times=2, method="POST"))
    async with setting.running():
        await setting.until(lambda: bool(setting.slices), 5.0)


@virtual.TIME
async def test_a_missing_right_is_named_until_it_is_granted(setting: Setting, said: Said) -> None:
    setting.put_node()
    setting.server.denied = {("create", "resourceslices")}
    async with setting.running():
        await anyio.sleep(20)
        assert "resourceslices is forbidden" in setting.publisher.error
        setting.server.denied = set()
        await setting.until(lambda: bool(setting.slices), 600.0)
        await anyio.sleep(1)
        assert setting.publisher.error == ""
    assert len(said(log.CLUSTER_WRITE_REFUSED)) == 1


@virtual.TIME
async def test_the_devices_in_slices_are_part_of_the_snapshot(setting: Setting) -> None:
    setting.add_gpus(1, 2)
    setting.put_node()
    async with setting.running():
        await setting.until(lambda: len(setting.devices) == 2)
        await anyio.sleep(5)
        assert setting.core.snapshots.now.in_slices == {"0000:01:00.0", "0000:01:00.1"}


@virtual.TIME
async def test_without_credentials_a_claim_is_refused_with_what_to_do(setting: Setting) -> None:
    async with setting.running():
        await anyio.sleep(1)
        setting.core.settings.set(config.load(Sources("/nowhere", {}, {})))
        await anyio.sleep(1)
        assert "no credentials" in setting.publisher.error
        with pytest.raises(ClusterUnavailable, match="no credentials"):
            await setting.publisher.read_claim(ClaimRef("ns", "gpu", "uid"), 1e9)


@virtual.TIME
async def test_missing_credentials_are_no_problem_while_no_rule_offers_devices_by_dra(
    setting: Setting, said: Said
) -> None:
    async with setting.running():
        setting.core.snapshots.publish(replace(setting.core.snapshots.now, spec=Spec()))
        setting.core.settings.set(config.load(Sources("/nowhere", {}, {})))
        await anyio.sleep(60)
        assert [*setting.publisher.problems] == []
    assert said(log.CLUSTER_WRITE_REFUSED) == []
