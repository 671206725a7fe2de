# SPDX-License-Identifier: Apache-2.0
"""The simulated drivers answer to writes as those of Linux 6.1 to 7.2 do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from nodeagent.sim.host import SimulatedHost
from tests.sim.drivers import FAULTS, KINDS, SimulatedDrivers, simulated

A, B = "0000:01:00.0", "0000:01:00.1"
PROBE = "/sys/bus/pci/drivers_probe"


@pytest.fixture
async def drivers(tmp_path: Path) -> AsyncIterator[SimulatedDrivers]:
    """Two functions of one group, on a driver of the host."""
    host = SimulatedHost(tmp_path)
    for address in (A, B):
        host.add_function(address, vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=5)
    async with simulated(host, A, B) as made:
        yield made


def put(drivers: SimulatedDrivers, path: str, text: str) -> None:
    Path(drivers.host.path(path)).write_text(f"{text}\n")


def override(drivers: SimulatedDrivers, address: str, driver: str) -> None:
    put(drivers, f"/sys/bus/pci/devices/{address}/driver_override", driver)


def unbind(drivers: SimulatedDrivers, address: str, driver: str) -> None:
    put(drivers, f"/sys/bus/pci/drivers/{driver}/unbind", address)


def has_node(drivers: SimulatedDrivers) -> bool:
    return Path(drivers.host.path("/dev/vfio/5")).exists()


def shown(drivers: SimulatedDrivers, address: str) -> str:
    return Path(drivers.host.attribute(address, "driver_override")).read_text()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - files give no event here
            await anyio.sleep(0.005)


async def bound(drivers: SimulatedDrivers, address: str) -> None:
    override(drivers, address, "vfio-pci")
    unbind(drivers, address, "e1000e")
    await until(lambda: drivers.driver(address) is None)
    put(drivers, PROBE, address)
    await until(lambda: drivers.driver(address) == "vfio-pci")


async def test_an_override_an_unbind_and_a_probe_bind_and_bring_the_node_of_the_group(
    drivers: SimulatedDrivers,
) -> None:
    await bound(drivers, A)
    assert has_node(drivers)
    assert [wrote.kind for wrote in drivers.writes] == ["override", "unbind", "probe"]


async def test_a_blank_override_shows_as_none_and_the_own_driver_takes_the_function_again(
    drivers: SimulatedDrivers,
) -> None:
    await bound(drivers, A)
    override(drivers, A, "")
    unbind(drivers, A, "vfio-pci")
    await until(lambda: drivers.driver(A) is None)
    put(drivers, PROBE, A)
    await until(lambda: drivers.driver(A) == "e1000e")
    await until(lambda: shown(drivers, A) == "(null)\n")
    assert not has_node(drivers)


async def test_what_is_not_so_is_not_done(drivers: SimulatedDrivers) -> None:
    override(drivers, A, "no-such-driver")
    unbind(drivers, A, "vfio-pci")  # which does not have it
    put(drivers, PROBE, B)  # which is bound
    put(drivers, PROBE, "0000:09:00.0")  # which is not there
    unbind(drivers, A, "e1000e")
    await until(lambda: drivers.driver(A) is None)
    put(drivers, PROBE, A)
    unbind(drivers, B, "e1000e")
    await until(lambda: drivers.driver(B) is None)
    assert [(wrote.kind, wrote.address) for wrote in drivers.writes if wrote.kind != "override"] == [
        ("unbind", A),
        ("unbind", B),
    ]
    assert drivers.driver(A) is None


async def test_two_writes_at_once_are_two(drivers: SimulatedDrivers) -> None:
    unbind(drivers, A, "e1000e")
    unbind(drivers, B, "e1000e")
    await until(lambda: (drivers.driver(A), drivers.driver(B)) == (None, None))


async def test_a_lost_write_has_no_effect_and_a_torn_one_another(drivers: SimulatedDrivers) -> None:
    assert set(FAULTS) == {"lost", "torn", "undone"}
    assert "unbind" in KINDS
    drivers.faults.set(f"unbind:{A}", "lost")
    drivers.faults.set(f"override:{B}", "torn")
    unbind(drivers, A, "e1000e")
    override(drivers, B, "vfio-pci")
    await until(lambda: len(drivers.writes) == 2)
    assert (drivers.driver(A), drivers.driver(B), drivers.override(B)) == ("e1000e", None, "")


async def test_who_looks_is_called_around_each_effect(drivers: SimulatedDrivers) -> None:
    seen: list[tuple[int, bool, str | None]] = []
    drivers.around = lambda number, done: seen.append((number, done, drivers.driver(A)))
    unbind(drivers, A, "e1000e")
    await until(lambda: len(seen) == 2)
    assert seen == [(1, False, "e1000e"), (1, True, None)]
