# SPDX-License-Identifier: Apache-2.0
"""VFs that are made for VFIO: no driver of the host gets them first, whatever goes wrong on the way."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.base.watch import DirectoryWatcher
from nodeagent.sim import files
from nodeagent.sim.host import DRIVERS
from tests.blackbox.harness import PATIENCE, Node, eventually
from tests.blackbox.test_bindings import ROUTES, below
from tests.facts import names
from tests.sim import fifos
from tests.sim.drivers import SimulatedDrivers, simulated
from tests.sim.vfs import SimulatedVfs

PF = "0000:3b:00.0"
FIRST, SECOND = "0000:3b:00.4", "0000:3b:00.5"
NICS = "example.com/nic"
RESOURCE = f"""apiVersion: nodeagent/v1
discovery: {{enabled: false}}
resources: [{{name: {NICS}, pci: [{{vendors: ["8086"], devices: ["1889"]}}]}}]
"""
MADE = f'sriov: [{{match: [{{addresses: ["{PF}"]}}], numVFs: 2}}]\n'
BY_SRIOV = MADE.replace("numVFs: 2", "numVFs: 2, driver: vfio-pci")
BY_DEVICE = MADE + 'passthrough: [{match: [{vendors: ["8086"], devices: ["1889"], classes: ["0200"]}]}]\n'
BY_ADDRESS = MADE + 'passthrough: [{match: [{addresses: ["0000:3b:00.4", "0000:3b:00.5"]}]}]\n'
SOME = MADE + 'passthrough: [{match: [{addresses: ["0000:3b:00.4"]}]}]\n'
ON_A_DRIVER = MADE + 'passthrough: [{match: [{devices: ["1889"], drivers: ["iavf"]}]}]\n'
REFUSING = "/sys/class/net/lo/ifindex"  # says 1, and takes no write


class Card:
    """A network card that makes VFs, which ``iavf`` takes where it may; ``first``: what each is born with."""

    def __init__(self, node: Node, drivers: SimulatedDrivers, watcher: DirectoryWatcher) -> None:
        self.first: dict[str, str | None] = {}
        self.around: Callable[[], None] = lambda: None
        self.drivers = drivers
        self.vfs = SimulatedVfs(
            *(node.host, PF, watcher),
            group=50,
            driver="iavf",
            ids=("8086", "1889", "020000"),
            on_change=self._made,
        )

    def _made(self) -> None:
        for address in self.vfs.made:
            self.first[address] = self.drivers.driver(address)
            self.drivers.follow(address, "iavf")
        self.around()

    @property
    def bound(self) -> bool:
        """True if there are two VFs, both on vfio-pci."""
        found = [(self.drivers.driver(each), self.drivers.override(each)) for each in self.vfs.made]
        return found == [("vfio-pci", "vfio-pci")] * 2


@asynccontextmanager
async def card(node: Node) -> AsyncIterator[Card]:
    """A card without VFs, whose files answer to writes."""
    node.host.add_function(
        PF, vendor="8086", device="1592", pci_class="020000", driver="ice", group=49, sriov=4
    )
    node.host.write(PF, "sriov_vf_device", "1889")
    files.directory(node.host.path(f"{DRIVERS}/iavf"))
    watcher = DirectoryWatcher()
    async with simulated(node.host) as drivers, anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        yield Card(node, drivers, watcher)
        group.cancel_scope.cancel()
    watcher.close()


def attribute(node: Node, name: str) -> Path:
    return Path(node.host.attribute(PF, name))


def probed(node: Node) -> str:
    return attribute(node, "sriov_drivers_autoprobe").read_text().strip()


@pytest.mark.parametrize("rules", [BY_SRIOV, BY_DEVICE, BY_ADDRESS], ids=["sriov", "device", "address"])
async def test_vfs_for_vfio_are_never_on_a_driver_of_the_host(node: Node, rules: str) -> None:
    node.configure(RESOURCE + rules)
    async with card(node) as nic:
        (step,) = json.loads((await node.command("plan", "-o", "json")).stdout)["steps"]
        assert step["kind"] == "set-num-vfs"
        names(step["action"], PF, "2", "sriov_drivers_autoprobe")
        assert (probed(node), nic.vfs.made) == ("1", ())
        async with node.running(listed={NICS: 2}) as (daemon, _):
            await eventually(lambda: nic.bound, PATIENCE)
            assert nic.first == {FIRST: None, SECOND: None}
            assert probed(node) == "0"
            await daemon.logged("action-done", count=3)
            node.configure(RESOURCE)
            await eventually(lambda: probed(node) == "1", PATIENCE)
            await eventually(lambda: not node.has_former_drivers(), PATIENCE)
            assert [nic.drivers.driver(each) for each in nic.vfs.made] == [None, None]


async def test_what_is_as_wished_is_not_written_to_and_what_somebody_has_switched_off_stays_off(
    node: Node,
) -> None:
    node.configure(RESOURCE + BY_SRIOV)
    async with card(node) as nic:
        node.host.write(PF, "sriov_drivers_autoprobe", "0")
        async with node.running(listed={NICS: 2}):
            await eventually(lambda: nic.bound, PATIENCE)
        wrote = len(nic.drivers.writes)
        async with node.running(listed={NICS: 2}) as (daemon, _):
            assert "nothing to do" in (await node.command("plan")).stdout
            assert (await node.status())["changes"]["writes"] == 0
            assert len(nic.drivers.writes) == wrote
            node.configure(RESOURCE)
            await daemon.logged("action-done", count=2)
            await eventually(lambda: not node.has_former_drivers(), PATIENCE)
            assert probed(node) == "0"


@pytest.mark.parametrize("rules", [MADE, SOME, ON_A_DRIVER], ids=["no rule", "not all", "on a driver"])
async def test_vfs_of_which_any_is_for_the_host_get_its_driver(node: Node, rules: str) -> None:
    node.configure(RESOURCE + rules)
    async with card(node) as nic, node.running(listed={NICS: 2}) as (daemon, _):
        await daemon.logged("action-done")
        assert nic.first == {FIRST: "iavf", SECOND: "iavf"}
        assert probed(node) == "1"


async def test_a_kernel_without_the_switch_makes_vfs_that_are_bound_a_moment_later(node: Node) -> None:
    node.configure(RESOURCE + BY_SRIOV)
    async with card(node) as nic:
        attribute(node, "sriov_drivers_autoprobe").unlink()
        async with node.running(listed={NICS: 2}):
            await eventually(lambda: nic.bound, PATIENCE)
            assert nic.first == {FIRST: "iavf", SECOND: "iavf"}
            node.configure(RESOURCE)
            await eventually(lambda: nic.drivers.driver(FIRST) == "iavf", PATIENCE)


async def test_vfs_that_the_host_has_and_uses_keep_its_driver_and_the_switch_is_not_touched(
    node: Node,
) -> None:
    node.configure(RESOURCE + MADE)
    async with card(node) as nic, node.running(listed={NICS: 2}) as (daemon, _):
        await eventually(lambda: len(nic.vfs.made) == 2, PATIENCE)
        below(node, FIRST, "net/eth7", "sys/class/net/eth7", flags="0x1003")
        node.host.write_file("/proc/1/net/dev", "Inter-| Receive\n face |bytes\n eth7: 0\n")
        route = "eth7 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n"
        node.host.write_file("/proc/1/net/route", ROUTES + route)
        node.configure(RESOURCE + BY_SRIOV)
        said = await daemon.logged("plan-problem")
        names(said["text"], FIRST, "eth7", "default route")
        await eventually(lambda: nic.drivers.driver(SECOND) == "vfio-pci", PATIENCE)
        node.configure(RESOURCE + BY_SRIOV.replace("numVFs: 2", "numVFs: 3"))
        said = await daemon.logged("action-waiting")
        names(said["cause"], FIRST, "iavf")
        assert (nic.drivers.driver(FIRST), probed(node)) == ("iavf", "1")


async def test_a_switch_that_cannot_be_written_leaves_the_card_without_vfs(node: Node) -> None:
    node.configure(RESOURCE + BY_SRIOV)
    async with card(node) as nic:
        switch = attribute(node, "sriov_drivers_autoprobe")
        switch.unlink()
        switch.symlink_to(REFUSING)
        async with node.kubelet(), node.daemon() as daemon:
            said = await daemon.logged("action-failed")
            assert "sriov_drivers_autoprobe: Permission denied" in said["error"]
            told = await node.until_told(lambda told: bool(told["changes"]["failing"]))
            assert told["changes"]["failing"][0]["card"] == PF
            assert (nic.vfs.made, attribute(node, "sriov_numvfs").read_text()) == ((), "0\n")
            switch.unlink()
            files.write_new(str(switch), "1\n")
            await eventually(lambda: nic.bound, PATIENCE)


@pytest.mark.parametrize("fault", ["/proc/self/mem", "/dev/null"], ids=["refused", "without effect"])
async def test_a_number_that_fails_takes_the_switch_back_with_it(node: Node, fault: str) -> None:
    node.configure(RESOURCE + BY_SRIOV)
    async with card(node) as nic:
        number = attribute(node, "sriov_numvfs")
        number.unlink()
        number.symlink_to(fault)
        async with node.kubelet(), node.daemon() as daemon:
            said = await daemon.logged("action-failed")
            assert "sriov_numvfs" in said["error"]
            await eventually(lambda: probed(node) == "1", PATIENCE)
            number.unlink()
            files.write_new(str(number), "0\n")
            await eventually(lambda: nic.bound, PATIENCE)
            assert nic.first == {FIRST: None, SECOND: None}


@pytest.mark.parametrize("wished", [True, False], ids=["still wished", "not wished any more"])
async def test_a_daemon_that_is_killed_behind_the_switch_leaves_to_the_next_one_what_that_can_end(
    node: Node, wished: bool
) -> None:
    node.configure(RESOURCE + BY_SRIOV)
    async with card(node) as nic, node.kubelet():
        number = attribute(node, "sriov_numvfs")
        with fifos.delaying_writers(number):
            async with node.daemon(ready=False) as daemon:
                await eventually(lambda: probed(node) == "0", PATIENCE)
                assert await daemon.end(signal.SIGKILL) == -signal.SIGKILL
            assert nic.vfs.made == ()
            number.unlink()
            files.write_new(str(number), "0\n")
            node.configure(RESOURCE + (BY_SRIOV if wished else ""))
            async with node.daemon():
                if wished:
                    await eventually(lambda: nic.bound, PATIENCE)
                    assert nic.first == {FIRST: None, SECOND: None}
                    node.configure(RESOURCE)
                await eventually(lambda: probed(node) == "1", PATIENCE)
                await eventually(lambda: not node.has_former_drivers(), PATIENCE)


async def test_a_daemon_that_is_killed_when_the_vfs_are_there_has_them_bound_by_the_next_one(
    node: Node,
) -> None:
    node.configure(RESOURCE + BY_SRIOV)
    async with card(node) as nic, node.kubelet():
        async with node.daemon(ready=False) as daemon:
            nic.around = lambda: daemon.send(signal.SIGKILL)
            assert await daemon.process.wait() == -signal.SIGKILL
        assert [nic.drivers.driver(each) for each in nic.vfs.made] == [None, None]
        async with node.daemon():
            await eventually(lambda: nic.bound, PATIENCE)
            assert probed(node) == "0"
            node.configure(RESOURCE)
            await eventually(lambda: probed(node) == "1", PATIENCE)


async def test_a_card_that_came_back_has_its_switch_on_and_nothing_is_written_to_it(node: Node) -> None:
    node.configure(RESOURCE + BY_SRIOV)
    async with card(node) as nic:
        async with node.running(listed={NICS: 2}):
            await eventually(lambda: nic.bound, PATIENCE)
        node.host.write(PF, "sriov_drivers_autoprobe", "1")
        switch = attribute(node, "sriov_drivers_autoprobe")
        before = switch.stat().st_mtime_ns
        node.configure(RESOURCE)
        async with node.kubelet(), node.daemon():
            await eventually(lambda: not node.has_former_drivers(), PATIENCE)
            assert switch.stat().st_mtime_ns == before
