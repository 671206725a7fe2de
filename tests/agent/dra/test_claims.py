# SPDX-License-Identifier: Apache-2.0
"""Claims of pods: prepared when their devices are usable, in use until released, known after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from nodeagent.agent import core
from nodeagent.agent.core import Core
from nodeagent.agent.dra.claims import Claims
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.allocation import Reservations
from nodeagent.model.claim import ClaimDevice, ClaimRef
from nodeagent.model.resource import Via
from nodeagent.model.spec import Discovery, MdevRule, MdevSelector, PciRule, PciSelector
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.mdev import Card, MdevKernel, Type, add_card, simulated_cards
from tests.agent.parts import settings
from tests.facts import names
from tests.sim import hosts

GPU = "example.com/gpu"
DRIVER, POOL = "nodeagent.local", "nodeagent.local/node1"
FIRST, SECOND = "pci-0000-01-00-0", "pci-0000-01-01-0"
ONE, TWO = ClaimRef("ns", "one", "uid-1"), ClaimRef("ns", "two", "uid-2")
BRIEF = Timeouts()._replace(claim_prepare=0.5, claim_device_poll=0.02)
UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
BY_DRA = (
    PciRule(GPU, (PciSelector(("10de",), drivers=("vfio-pci",)),), via=Via.DRA),
    MdevRule("example.com/vgpu", (MdevSelector(("nvidia-222",)),), via=Via.DRA),
)


@dataclass
class Side:
    """The answers about claims on one host, and the claims at the API server."""

    host: SimulatedHost
    core: Core
    claims: Claims
    objects: dict[ClaimRef, dict[str, Any]]

    def allocate(self, ref: ClaimRef, *devices: str, **more: Any) -> None:
        """The scheduler has allocated these devices to the claim."""
        results = [
            {"request": "gpu", "driver": DRIVER, "pool": POOL, "device": each, **more} for each in devices
        ]
        self.objects[ref] = {
            "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
            "status": {"allocation": {"devices": {"results": results}}},
        }

    async def prepare(self, *refs: ClaimRef) -> Mapping[str, Sequence[ClaimDevice] | str]:
        return await self.claims.prepare(refs)

    async def error(self, ref: ClaimRef) -> str:
        """Prepare the claim, which fails with this text."""
        answer = (await self.prepare(ref))[ref.uid]
        assert isinstance(answer, str)
        return answer

    @property
    def users(self) -> dict[str, str]:
        """Device id → its user."""
        return {each: str(holder) for each, holder in self.core.snapshots.now.allocations.held()}

    @property
    def files(self) -> set[str]:
        """The names of the CDI files, and the directories of metadata files."""
        metadata = Path(self.host.directory, "var/lib/kubelet/plugins", DRIVER, "dra-device-metadata")
        found = (*Path(self.host.path("/var/run/cdi")).glob("*"), *metadata.glob("*"))
        return {each.name for each in found}


@asynccontextmanager
async def side_of(host: SimulatedHost, timeouts: Timeouts = BRIEF) -> AsyncIterator[Side]:
    """A driver without sockets; the next one on the host is a restarted daemon."""
    now = settings().get()
    configuration = replace(now.configuration, discovery=Discovery(enabled=False), rules=BY_DRA)
    shared = core.build(Root(host.directory), Latest(replace(now, configuration=configuration)), timeouts)
    objects: dict[ClaimRef, dict[str, Any]] = {}

    async def read(ref: ClaimRef, until: float) -> dict[str, Any]:
        if ref not in objects:
            raise ClusterUnavailable("the API server has no such claim", status=404)
        return objects[ref]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shared.watcher.run)
        tasks.start_soon(shared.events.run)
        await core.first_scan(shared)
        tasks.start_soon(shared.observer.run)
        yield Side(host, shared, Claims(shared, read, DRIVER, lambda: POOL), objects)
        tasks.cancel_scope.cancel()
    shared.watcher.close()


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return hosts.many(tmp_path, 2)


async def test_a_claim_uses_its_device_from_prepare_to_unprepare(host: SimulatedHost) -> None:
    async with side_of(host) as side:
        side.allocate(ONE, FIRST)
        answer = (await side.prepare(ONE))["uid-1"]
        assert not isinstance(answer, str)
        assert [(each.name, each.parts) for each in answer] == [(FIRST, (hosts.address(0),))]
        assert side.users == {hosts.address(0): "claim ns/one"}
        assert side.files == {"dra-nodeagent.local-uid-1.json", "uid-1"}
        assert await side.claims.unprepare([ONE]) == {"uid-1": ""}
        assert (side.users, side.files) == ({}, set())
        assert await side.claims.unprepare([ONE]) == {"uid-1": ""}, "a repeated request is no error"


async def test_claims_of_one_call_are_answered_separately(host: SimulatedHost) -> None:
    async with side_of(host) as side:
        side.allocate(ONE, FIRST)
        side.allocate(TWO, SECOND, adminAccess=True)
        unknown = ClaimRef("ns", "unknown", "uid-3")
        answers = await side.prepare(ONE, TWO, unknown)
        assert not isinstance(answers["uid-1"], str)
        assert "adminAccess" in answers["uid-2"]
        assert "no such claim" in answers["uid-3"]
        assert side.users == {hosts.address(0): "claim ns/one"}


async def test_a_device_of_another_claim_is_awaited(host: SimulatedHost) -> None:
    """After a force deletion, the scheduler allocates the device before its former pod has ended."""
    async with side_of(host, Timeouts()) as side:
        side.allocate(ONE, FIRST)
        side.allocate(TWO, FIRST)
        await side.prepare(ONE)
        answers: dict[str, Any] = {}

        async def prepare() -> None:
            answers.update(await side.prepare(TWO))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prepare)
            await anyio.sleep(0.1)
            assert not answers
            await side.claims.unprepare([ONE])
        assert not isinstance(answers["uid-2"], str)
        assert side.users == {hosts.address(0): "claim ns/two"}


async def test_a_device_that_stays_in_use_is_an_error_with_its_user(host: SimulatedHost) -> None:
    async with side_of(host) as side:
        side.allocate(ONE, FIRST)
        side.allocate(TWO, FIRST)
        await side.prepare(ONE)
        names(await side.error(TWO), FIRST, "claim ns/one", "next try in about a minute")
        assert side.users == {hosts.address(0): "claim ns/one"}
        assert side.files == {"dra-nodeagent.local-uid-1.json", "uid-1"}


async def test_a_claim_that_is_released_while_it_waits_is_not_prepared(host: SimulatedHost) -> None:
    async with side_of(host, Timeouts()) as side:
        side.allocate(ONE, FIRST)
        side.allocate(TWO, FIRST)
        await side.prepare(ONE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(side.prepare, TWO)
            tasks.start_soon(side.prepare, TWO)  # a second pod with the claim
            await anyio.sleep(0.1)
            with anyio.fail_after(5):
                assert await side.claims.unprepare([TWO]) == {"uid-2": ""}
        assert side.users == {hosts.address(0): "claim ns/one"}


async def test_an_mdev_that_is_being_removed_is_awaited(tmp_path: Path) -> None:
    host, card = SimulatedHost(tmp_path), Card(hosts.address(0), (Type("nvidia-222", 16, "GRID T4-1Q"),))
    add_card(host, card, 10)
    async with simulated_cards(host, MdevKernel([card])) as cards:
        cards.create(card.address, "nvidia-222", UUID)
        async with side_of(host) as side:
            side.allocate(ONE, f"mdev-{UUID}")
            snapshots = side.core.snapshots
            withdrawn = Reservations(withdrawn=frozenset({UUID}))
            snapshots.publish(replace(snapshots.now, reservations=withdrawn))
            names(await side.error(ONE), UUID, "being removed")
            snapshots.publish(replace(snapshots.now, reservations=Reservations()))
            assert not isinstance((await side.prepare(ONE))["uid-1"], str)


async def test_the_device_is_read_again_before_it_is_prepared(host: SimulatedHost) -> None:
    async with side_of(host) as side:
        side.allocate(ONE, FIRST)
        host.bind(hosts.address(0), "nouveau")
        names(await side.error(ONE), "nouveau")
        assert side.users == {}


async def test_a_prepared_claim_is_known_after_a_restart(host: SimulatedHost) -> None:
    async with side_of(host) as side:
        side.allocate(ONE, FIRST)
        await side.prepare(ONE)
        before = side.core.snapshots.now.claims
    await anyio.Path(host.path("/var/run/cdi/dra-nodeagent.local-uid-1.json")).unlink()
    async with side_of(host) as side:
        assert side.core.snapshots.now.claims == before
        assert side.users == {hosts.address(0): "claim ns/one"}
        await side.claims.restore()
        assert side.files == {"dra-nodeagent.local-uid-1.json", "uid-1"}
        assert await side.claims.unprepare([ONE]) == {"uid-1": ""}
        assert side.files == set()
    async with side_of(host) as side:
        assert not side.core.snapshots.now.claims


async def test_a_claim_whose_files_cannot_be_written_is_not_prepared(host: SimulatedHost) -> None:
    blocked = anyio.Path(host.directory, "var/lib/kubelet/plugins", DRIVER, "dra-device-metadata")
    await blocked.parent.mkdir(parents=True)
    await blocked.write_text("", encoding="utf-8")
    async with side_of(host) as side:
        side.allocate(ONE, FIRST)
        names(await side.error(ONE), "metadata.json", "next try in about a minute")
        assert (side.users, side.files) == ({}, set())
        await blocked.unlink()
        assert not isinstance((await side.prepare(ONE))["uid-1"], str)


async def test_claims_that_no_longer_exist_are_released_some_time_after_the_start(
    host: SimulatedHost,
) -> None:
    """The kubelet has lost its state, and so it never releases them."""
    async with side_of(host) as side:
        side.allocate(ONE, FIRST)
        side.allocate(TWO, SECOND)
        await side.prepare(ONE, TWO)
    soon = BRIEF._replace(claim_release_by_kubelet=0.1)
    async with side_of(host, soon) as side, anyio.create_task_group() as tasks:
        side.allocate(TWO, SECOND)
        tasks.start_soon(side.claims.release_orphans)
        with anyio.fail_after(5):
            while len(side.users) == 2:  # noqa: ASYNC110 - nothing else happens here
                await anyio.sleep(0.01)
        assert side.users == {hosts.address(1): "claim ns/two"}
        tasks.cancel_scope.cancel()
    assert side.files == {"dra-nodeagent.local-uid-2.json", "uid-2"}


async def test_a_prepared_claim_stays_prepared_if_its_files_cannot_be_written_again(
    host: SimulatedHost,
) -> None:
    """The kubelet requests the claims of running pods again after its restart."""
    metadata = anyio.Path(host.directory, "var/lib/kubelet/plugins", DRIVER, "dra-device-metadata")
    async with side_of(host) as side:
        side.allocate(ONE, FIRST)
        await side.prepare(ONE)
        await metadata.rename(metadata.with_name("aside"))
        await metadata.write_text("", encoding="utf-8")
        names(await side.error(ONE), "metadata.json")
        assert side.users == {hosts.address(0): "claim ns/one"}
    async with side_of(host) as side:
        assert side.users == {hosts.address(0): "claim ns/one"}


@pytest.mark.parametrize("remains", ["nothing", "another claim of the name", "a claim without allocation"])
async def test_a_claim_that_the_kubelet_has_forgotten_keeps_its_device_from_no_other(
    host: SimulatedHost, remains: str
) -> None:
    async with side_of(host) as side:
        side.allocate(ONE, FIRST)
        side.allocate(TWO, FIRST)
        await side.prepare(ONE)
        if remains == "nothing":
            del side.objects[ONE]
        elif remains == "another claim of the name":
            side.objects[ONE]["metadata"]["uid"] = "uid-3"
        else:
            side.objects[ONE]["status"] = {}
        assert not isinstance((await side.prepare(TWO))["uid-2"], str)
        assert side.users == {hosts.address(0): "claim ns/two"}
        assert side.files == {"dra-nodeagent.local-uid-2.json", "uid-2"}


async def test_a_claim_of_another_boot_is_dropped_at_the_start(host: SimulatedHost) -> None:
    """No pod of it runs after the reboot, and the kubelet prepares it again for a pod that starts."""
    async with side_of(host) as side:
        side.allocate(ONE, FIRST)
        await side.prepare(ONE)
    host.write_file("/proc/sys/kernel/random/boot_id", "another")
    async with side_of(host) as side:
        await side.claims.restore()
        assert (side.users, side.files) == ({}, set())
        side.allocate(ONE, FIRST)
        await side.prepare(ONE)
        assert side.users == {hosts.address(0): "claim ns/one"}
    async with side_of(host) as side:
        await side.claims.restore()
        assert side.users == {hosts.address(0): "claim ns/one"}
