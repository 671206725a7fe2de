# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups as sysfs shows them: which of them have memory that firmware wants mapped 1:1."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import groups, scanner
from nodeagent.kernel.scan.readers import Item
from nodeagent.model.host import Host
from nodeagent.model.ids import GroupNumber, PciAddress
from nodeagent.sim.host import SimulatedHost
from tests.looking import Looks
from tests.sim import devnodes

A = PciAddress("0000:01:00.0")
MSI = "0x00000000fee00000 0x00000000feefffff msi"
REGIONS = "/sys/kernel/iommu_groups/1/reserved_regions"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    simulated = SimulatedHost(tmp_path)
    simulated.add_function(A, vendor="10de", device="1eb8", pci_class="030200", driver="vfio-pci", group=1)
    return simulated


@pytest.mark.parametrize(
    ("regions", "direct"),
    [
        (MSI, False),
        (f"0x00000000000e8000 0x00000000000e8fff direct\n{MSI}", True),
        (f"{MSI}\n0x000000009d800000 0x00000000dfffffff direct", True),
        (f"0x000000009d800000 0x00000000dfffffff direct-relaxable\n{MSI}", False),
        ("0x0000000000000000 0x0000000000000fff reserved", False),
        ("", False),
    ],
)
def test_a_group_says_whether_firmware_has_memory_mapped_1_to_1_for_it(
    host: SimulatedHost, tmp_path: Path, regions: str, direct: bool
) -> None:
    host.write_file(REGIONS, regions)
    found = groups.group(Root(tmp_path), GroupNumber(1))
    assert found is not None
    assert found.direct is direct
    assert found.members == (A,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")
@pytest.mark.parametrize(
    ("told", "node", "stale"),
    [("245:3", True, False), ("245:77", False, True), (None, True, False)],
    ids=["its own", "another's", "the kernel does not tell"],
)
def test_the_node_of_a_group_has_the_number_that_the_kernel_gave_it(
    host: SimulatedHost, tmp_path: Path, told: str | None, node: bool, stale: bool
) -> None:
    host.remove_node("/dev/vfio/1")
    devnodes.add(host, "/dev/vfio/1", (245, 3))
    if told is not None:
        host.write_file("/sys/class/vfio/1/dev", f"{told}\n")
    found = groups.group(Root(tmp_path), GroupNumber(1))
    assert found is not None
    assert (found.node, found.stale) == (node, stale)


def test_a_group_without_the_file_has_no_such_memory(host: SimulatedHost, tmp_path: Path) -> None:
    Path(host.path(REGIONS)).unlink()
    found = groups.group(Root(tmp_path), GroupNumber(1))
    assert found is not None
    assert not found.direct


@pytest.mark.parametrize(("name", "vtd"), [("dmar0", True), ("ivhd0", False), ("smmu3.0x0000", False)])
def test_a_host_says_whether_its_iommu_is_intels(
    host: SimulatedHost, tmp_path: Path, name: str, vtd: bool
) -> None:
    iommus = Path(host.path("/sys/class/iommu"))
    (iommus / "dmar0").rename(iommus / name)
    found = Looks(Root(tmp_path)).full()
    assert (found.iommu, found.vtd) == (True, vtd)


def test_a_node_with_thousands_of_digits_is_no_group() -> None:
    assert scanner.resolve([f"/dev/vfio/{'1' * 5000}"], Host()) == ()
    assert scanner.resolve(["/dev/vfio/2147483647"], Host()) == (Item("groups", GroupNumber(2147483647)),)
