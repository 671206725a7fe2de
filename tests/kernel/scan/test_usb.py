# SPDX-License-Identifier: Apache-2.0
"""USB devices as they are read: what they are, by which id they are known, what the host uses of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.kernel import uevents
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import usb
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model import host_json
from nodeagent.model.host import NODES, Host, UsbDevice
from nodeagent.sim.host import SimulatedHost
from tests.looking import Looks
from tests.sim.usb import HUB, KEYBOARD, STICK, Plug, UsbBuses

PATH = "46f4:0001@0000:00:14.0-usb-0"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return SimulatedHost(tmp_path)


@pytest.fixture
def buses(host: SimulatedHost) -> UsbBuses:
    return UsbBuses(host.tree)


def seen(host: SimulatedHost) -> Host:
    return Looks(Root(host.directory)).full(nodes=(NODES,))


def refreshed(host: SimulatedHost, before: Host, *names: str) -> Host:
    keys = frozenset(usb.scan_key(name) for name in names)
    return Looks(Root(host.directory)).refresh(before, keys, nodes=(NODES,))


def serial(text: str) -> Plug:
    return STICK._replace(serial=text)


def places(found: Host) -> dict[str, str]:
    return {each.id: each.name for each in found.usb.values()}


def test_all_that_sysfs_shows_of_a_device_is_read(host: SimulatedHost, buses: UsbBuses) -> None:
    host.add_function("0000:00:14.0", vendor="8086", device="a36d", pci_class="0c0330", port=None, numa=0)
    buses.plug("1-2", HUB)
    buses.plug("1-2.3", serial("S-1"), 9)
    device = seen(host).usb["46f4:0001-S-1"]
    assert device == UsbDevice(
        id="46f4:0001-S-1",
        name="1-2.3",
        path="0000:00:14.0-usb-0:2.3",
        bus=1,
        number=9,
        vendor="46f4",
        product="0001",
        serial="S-1",
        text="QEMU USB HARDDRIVE",
        device_class="00",
        interfaces=device.interfaces,
        numa_node=0,
        present=True,
    )
    assert [(each.code, each.driver) for each in device.interfaces] == [("080650", "usb-storage")]
    assert (device.node, device.place, device.hub) == ("/dev/bus/usb/001/009", "1:9", False)
    assert [each.hub for each in seen(host).usb.values()].count(True) == 1


def test_a_scan_that_is_not_asked_for_usb_devices_reads_none(host: SimulatedHost, buses: UsbBuses) -> None:
    buses.plug("1-1", STICK)
    assert Looks(Root(host.directory)).full().usb == {}


def test_a_saved_host_has_them(host: SimulatedHost, buses: UsbBuses) -> None:
    buses.plug("1-1", serial("A"))
    found = seen(host)
    assert host_json.load(host_json.dump(found)).usb == found.usb


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("S1", "46f4:0001-S1"),
        ("1-0000:00:04.0-1", "46f4:0001-1-0000:00:04.0-1"),
        ("", f"{PATH}:1"),
    ],
)
def test_an_id_has_the_serial_number_if_there_is_one(
    host: SimulatedHost, buses: UsbBuses, text: str, expected: str
) -> None:
    buses.plug("1-1", serial(text))
    assert list(seen(host).usb) == [expected]


@pytest.mark.parametrize(("one", "other"), [("a b", "a_b"), ("x" * 80, "x" * 79), ("a/b", "a,b"), ("ä", "ö")])
def test_serial_numbers_that_no_id_may_hold_are_told_apart(
    host: SimulatedHost, buses: UsbBuses, one: str, other: str
) -> None:
    buses.plug("1-1", serial(one))
    buses.plug("1-2", serial(other))
    found = list(seen(host).usb)
    assert len(found) == 2
    assert all(len(each) <= 63 and each.isascii() and "/" not in each and " " not in each for each in found)
    assert all(each.startswith("46f4:0001-") for each in found)


def test_who_was_there_first_keeps_the_id_that_its_twin_would_have(
    host: SimulatedHost, buses: UsbBuses
) -> None:
    buses.plug("1-2", serial("0"))
    first = seen(host)
    buses.plug("1-1", serial("0"))
    both = refreshed(host, first, "1-1")
    assert places(both) == {"46f4:0001-0": "1-2", f"{PATH}:1": "1-1"}
    buses.unplug("1-2")
    left = refreshed(host, both, "1-2")
    assert places(left) == {f"{PATH}:1": "1-1"}
    assert both.changes_since(first).usb == {f"{PATH}:1"}
    assert left.changes_since(both).usb == {"46f4:0001-0"}


def test_a_device_that_changed_its_port_is_the_same(host: SimulatedHost, buses: UsbBuses) -> None:
    buses.plug("1-1", serial("A"))
    before = seen(host)
    buses.unplug("1-1")
    buses.plug("1-3", serial("A"))
    assert places(refreshed(host, before, "1-1", "1-3")) == {"46f4:0001-A": "1-3"}


def test_another_device_at_the_same_port_is_another_one(host: SimulatedHost, buses: UsbBuses) -> None:
    buses.plug("1-1", serial("A"))
    before = seen(host)
    buses.unplug("1-1")
    buses.plug("1-1", serial("B"))
    now = refreshed(host, before, "1-1")
    assert places(now) == {"46f4:0001-B": "1-1"}
    assert now.changes_since(before).usb == {"46f4:0001-A", "46f4:0001-B"}


def test_what_did_not_change_is_the_same_object(host: SimulatedHost, buses: UsbBuses) -> None:
    buses.plug("1-1", serial("A"))
    buses.plug("1-2", serial("B"))
    before = seen(host)
    buses.renumber("1-2")
    now = refreshed(host, before, "1-1", "1-2")
    assert now.usb["46f4:0001-A"] is before.usb["46f4:0001-A"]
    assert now.changes_since(before).usb == {"46f4:0001-B"}
    assert Looks(Root(host.directory)).recheck(["46f4:0001-A", "46f4:0001-B"], now)
    assert not Looks(Root(host.directory)).recheck(["46f4:0001-B"], before)


def test_a_device_whose_ids_vanish_while_it_is_read_stays_what_it_was(
    host: SimulatedHost, buses: UsbBuses
) -> None:
    buses.plug("1-1", serial("A"))
    before = seen(host)
    Path(host.path(f"{buses.path('1-1')}/idVendor")).unlink()
    now = refreshed(host, before, "1-1")
    assert list(now.usb) == ["46f4:0001-A"]
    assert now.usb["46f4:0001-A"].unreadable


def test_two_root_hubs_of_one_controller_are_told_apart(host: SimulatedHost, buses: UsbBuses) -> None:
    buses.plug("1-1", STICK)
    buses.plug("2-1", STICK)
    assert set(seen(host).usb) == {f"{PATH}:1", "46f4:0001@0000:00:14.0-usb-1:1"}


def test_a_serial_console_and_an_interface_in_use_are_seen(host: SimulatedHost, buses: UsbBuses) -> None:
    buses.plug("1-1", Plug("0403", "6001", "T", (("ffffff", "ftdi_sio"),)))
    buses.plug("1-2", Plug("0bda", "8153", "N", (("ffff00", "r8152"),)))
    serial_at = f"{buses.path('1-1')}/1-1:1.0/ttyUSB0/tty/ttyUSB0"
    net_at = f"{buses.path('1-2')}/1-2:1.0/net/usb0"
    host.write_file(f"{serial_at}/dev", "188:0")
    host.tree.link("/sys/class/tty/ttyUSB0", serial_at)
    host.write_file("/sys/class/tty/console/active", "tty0 ttyUSB0")
    host.write_file(f"{net_at}/flags", "0x1003")
    host.tree.link("/sys/class/net/usb0", net_at)
    head = "Inter-|   Receive\n face |bytes\n"
    host.write_file("/proc/1/net/dev", f"{head} usb0: 0 0")
    host.write_file(
        "/proc/1/net/route", "Iface\tDestination\nusb0\t00000000\t0102000A\t0003\t0\t0\t0\t00000000"
    )
    found = seen(host).usb
    assert [str(use) for use in found["0403:6001-T"].uses.found] == ["ttyUSB0, the console of the kernel"]
    assert [str(use) for use in found["0bda:8153-N"].uses.found] == ["usb0, default route"]


def test_a_keyboard_that_nobody_reads_is_free(host: SimulatedHost, buses: UsbBuses) -> None:
    buses.plug("1-2", KEYBOARD)
    host.write_file(
        "/proc/bus/input/devices",
        f"I: Bus=0003\nS: Sysfs={buses.path('1-2')}/1-2:1.0/input/input5\nH: Handlers=event3\n",
    )
    (keyboard,) = seen(host).usb.values()
    assert (keyboard.uses.found, keyboard.uses.unseen) == ((), ())


AT = "/devices/pci0000:00/0000:00:14.0/usb1/1-2"


def uevent(action: str, devpath: str, subsystem: str = "usb") -> uevents.Uevent:
    found = uevents.parse(f"{action}@{devpath}\0SUBSYSTEM={subsystem}\0".encode())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("event", "wanted"),
    [
        (uevent("add", f"{AT}/1-2.3"), "usb:1-2.3"),
        (uevent("remove", AT), "usb:1-2"),
        (uevent("bind", f"{AT}/1-2:1.0"), "usb:1-2"),
        (uevent("add", "/devices/pci0000:00/0000:00:14.0/usb1"), None),
        (uevent("add", f"{AT}/1-2:1.0/host7/target7:0:0/7:0:0:0/block/sdb", "block"), None),
    ],
    ids=["device", "pulled", "interface", "root hub", "its disk"],
)
def test_events_of_devices_and_their_interfaces_wake_if_somebody_wishes_for_them(
    event: uevents.Uevent, wanted: str | None
) -> None:
    for wished in (True, False):
        scan_requests = ScanRequests()
        scan_requests.take()
        uevents.request_scans(event, scan_requests, usb=wished)
        assert scan_requests.take() == (frozenset({wanted}) if wanted and wished else frozenset())
