# SPDX-License-Identifier: Apache-2.0
"""Who has a device of a function open: by its number, wherever the node is; what cannot be seen is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import host_use, nvidia
from nodeagent.model.host import HostUse, HostUses, UseKind
from nodeagent.model.ids import PciAddress
from nodeagent.sim.host import SimulatedHost
from tests.facts import each_names

GPU = PciAddress("0000:3b:00.0")
NULL = "1:3"  # the number of /dev/null, which stands for a device that a process has open
BY = "open by process 4711 (Xorg)"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """A display function whose driver has made a node, and a process that has /dev/null open."""
    host = SimulatedHost(tmp_path)
    host.add_function(GPU, vendor="10de", device="1eb8", pci_class="030000", driver="nouveau", group=1)
    host.write_file("/proc/4711/comm", "Xorg")
    (tmp_path / "proc/4711/fd").mkdir()
    (tmp_path / "proc/4711/fd/7").symlink_to("/dev/null")
    return host


def child(host: SimulatedHost, path: str, number: str) -> None:
    """A device below the function."""
    directory = Path(host.path(f"/sys/bus/pci/devices/{GPU}")).resolve() / path
    directory.mkdir(parents=True)
    (directory / "dev").write_text(f"{number}\n")


def opened(host: SimulatedHost) -> HostUses:
    return host_use.open_character_devices(Root(host.directory), GPU)


def test_what_a_process_has_open_is_named_with_the_process(host: SimulatedHost) -> None:
    child(host, "drm/card0", NULL)
    use = HostUse(UseKind.OPEN, "card0", BY)
    assert opened(host) == HostUses((use,))
    assert host_use.find_uses(Root(host.directory), (GPU,), closely=True)[GPU].found == (use,)
    assert host_use.find_uses(Root(host.directory), (GPU,))[GPU].found == ()


def test_what_nobody_has_open_is_no_use(host: SimulatedHost) -> None:
    child(host, "drm/card0", "226:77")
    assert opened(host) == HostUses()


def test_a_device_far_below_counts_and_one_of_another_function_does_not(host: SimulatedHost) -> None:
    child(host, "usb1/1-1/1-1:1.0/input/input3/event3", NULL)
    assert [use.what for use in opened(host).found] == ["event3"]


def test_a_keyboard_behind_as_many_hubs_as_usb_allows_counts(host: SimulatedHost) -> None:
    hubs = "/".join("2-1" + ".1" * number for number in range(6))
    child(host, f"usb2/{hubs}/2-1.1.1.1.1.1:1.0/0003:046D:C31C.0001/input/input7/event7", NULL)
    assert [use.what for use in opened(host).found] == ["event7"]


def test_what_is_below_another_function_is_not_its_own(host: SimulatedHost) -> None:
    child(host, "0000:3c:00.0/drm/card1", NULL)
    assert opened(host) == HostUses()


def test_nvidias_own_nodes_are_found_by_what_its_driver_says(host: SimulatedHost) -> None:
    host.write_file(f"/proc/driver/nvidia/gpus/{GPU}/information", "Model: \t A40\nDevice Minor: \t 3")
    assert nvidia.read_minor(Root(host.directory), GPU) == "3"
    assert nvidia.read_minor(Root(host.directory), "0000:00:00.0") is None


def test_where_no_process_can_be_seen_that_is_said(tmp_path: Path, host: SimulatedHost) -> None:
    child(host, "drm/card0", NULL)
    (tmp_path / "proc/4711/fd/7").unlink()
    (tmp_path / "proc/4711/fd").rmdir()
    (tmp_path / "proc/4711/comm").unlink()
    (tmp_path / "proc/4711").rmdir()
    host.write_file(f"/proc/driver/nvidia/gpus/{GPU}/information", "Device Minor: 3")
    each_names(opened(host).unseen, ("processes", "nvidia3", "card0"))
