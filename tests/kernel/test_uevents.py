# SPDX-License-Identifier: Apache-2.0
"""Uevents: every recording of tests/machines through the real reader, made-up messages, senders.

A pair of local sockets stands for the netlink socket, which only the kernel can feed as itself.
"""

from __future__ import annotations

import errno
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.base.errors import KernelRefused
from nodeagent.kernel import uevents
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.kernel.uevents import Uevent
from nodeagent.model.host import Recovery
from nodeagent.model.ids import PciAddress
from tests.hearing import Heard
from tests.limits import free_descriptors

RECORDINGS = sorted((Path(__file__).parents[1] / "machines" / "uevents").glob("*.json"))
A = PciAddress("0000:01:00.0")
NOISE = {"net", "queues", "ptp", "block", "nvme", "bdi", "hwmon", "workqueue", "wakeup", "nvme-generic",
         "nvme-subsystem", "graphics", "drm", "vtconsole", "i2c", "iommu"}  # fmt: skip


def steps(recording: Path) -> list[tuple[str, list[list[str]]]]:
    document = json.loads(recording.read_text())
    return [(step["step"], step["events"]) for step in document["steps"]]


def datagram(strings: list[str]) -> bytes:
    return b"".join(string.encode() + b"\0" for string in strings)


def events(recording: Path) -> list[Uevent]:
    found = [uevents.parse(datagram(one)) for _, many in steps(recording) for one in many]
    return [event for event in found if event is not None]


def keys(name: str, step: str) -> list[str | None]:
    """The keys of what concerns us in one step, without repeats."""
    recording = next(path for path in RECORDINGS if path.stem == name)
    wanted = next(many for label, many in steps(recording) if label.startswith(step))
    parsed = [event for one in wanted if (event := uevents.parse(datagram(one))) is not None]
    return list(dict.fromkeys(uevents.device_key(event) for event in parsed if uevents.affects_scan(event)))


@asynccontextmanager
async def reading(reader: uevents.Reader, heard: Callable[[Uevent | None], None]) -> AsyncIterator[None]:
    async def read() -> None:
        while True:
            for event in await reader.receive():
                heard(event)

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        yield
        group.cancel_scope.cancel()


def test_there_are_recordings() -> None:
    assert len(RECORDINGS) == 19


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
async def test_a_recording_arrives_through_the_reader_complete_and_in_order(recording: Path) -> None:
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    heard: Heard[Uevent | None] = Heard()
    reader = uevents.Reader(ours, trusted=lambda *_: True)
    expected = events(recording)
    with kernel, ours:
        async with reading(reader, heard):
            for _, many in steps(recording):
                for one in many:
                    await anyio.wait_writable(kernel)
                    kernel.send(datagram(one))
            await heard.until(lambda told: len(told) == len(expected))
    assert heard.all == expected
    assert reader.foreign == 0


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_noise_wakes_nobody_and_all_of_vfio_does(recording: Path) -> None:
    for event in events(recording):
        if event.subsystem in NOISE:
            assert not uevents.affects_scan(event)
        node = event.keys.get("DEVNAME", "")
        if event.subsystem in ("pci", "vfio", "vfio-dev", "mdev") or node.startswith("vfio/"):
            assert uevents.affects_scan(event)
            assert uevents.device_key(event) is not None


@pytest.mark.parametrize("kernel", ["6.1", "6.12", "7.2", "6.12-iommufd"])
def test_binding_names_the_function_and_its_group_only(kernel: str) -> None:
    function, node = keys(f"{kernel}-vfio", "bind 01:00.0")
    assert function == A
    assert node is not None
    assert node.startswith("/dev/vfio/")


def test_every_step_of_binding_has_its_keys() -> None:
    assert keys("6.12-vfio", "bind 01:00.0") == [A, "/dev/vfio/15"]
    assert "0000:81:00.0" in keys("6.12-vfio", "modprobe nvme")
    assert None not in keys("6.12-vfio", "modprobe nvme")
    assert None in keys("6.12-vfio", "modprobe vfio-pci")
    assert keys("6.12-vfio", "sriov_numvfs=3") == [
        "0000:06:00.1", "0000:06:00.2", "0000:06:00.3", "0000:06:00.0",
    ]  # fmt: skip
    assert keys("6.12-mdev", "create mtty/mdev_supported_types/mtty-1") == [
        "00000001-0000-4000-8000-000000000001", "/dev/vfio/17",
    ]  # fmt: skip
    assert keys("6.12-mdev", "load mtty") == [None]
    assert keys("6.12-mdev", "remove 00000001-*") == [
        "00000001-0000-4000-8000-000000000001", "/dev/vfio/17",
    ]  # fmt: skip


def test_the_course_of_a_recovery_is_told() -> None:
    recording = next(path for path in RECORDINGS if path.stem == "6.12-aer")
    verdicts = [verdict for event in events(recording) if (verdict := uevents.parse_recovery(event))]
    assert {address for address, _ in verdicts} == {A}
    running, failed = Recovery.RUNNING, Recovery.FAILED
    assert [recovery for _, recovery in verdicts] == [running, None, running, failed]


@pytest.mark.parametrize(
    ("action", "keys", "expected"),
    [
        ("bind", {}, (A, None)),
        ("add", {}, (A, None)),
        ("remove", {}, (A, None)),
        ("unbind", {}, None),
        ("change", {}, None),
        ("add", {"SYNTH_UUID": "0"}, None),
        ("change", {"ERROR_EVENT": "BEGIN_RECOVERY", "DEVICE_ONLINE": "0"}, (A, Recovery.RUNNING)),
        ("change", {"ERROR_EVENT": "FAILED_RECOVERY", "DEVICE_ONLINE": "0"}, (A, Recovery.FAILED)),
        ("change", {"ERROR_EVENT": "SUCCESSFUL_RECOVERY", "DEVICE_ONLINE": "1"}, (A, None)),
    ],
)
def test_what_an_event_says_of_a_recovery(
    action: str, keys: dict[str, str], expected: tuple[str, Recovery | None] | None
) -> None:
    event = Uevent(action, "/devices/x", {"SUBSYSTEM": "pci", "PCI_SLOT_NAME": A, **keys})
    assert uevents.parse_recovery(event) == expected


def test_the_key_is_the_innermost_device_of_the_path() -> None:
    path = "/devices/pci0000:00/0000:00:10.0/0000:01:00.0/vfio-dev/vfio0"
    assert uevents.device_key(Uevent("add", path, {"SUBSYSTEM": "vfio-dev"})) == A
    odd = Uevent("add", "/devices/virtual/x/vfio-dev/vfio7", {"SUBSYSTEM": "vfio-dev"})
    assert uevents.device_key(odd) == "vfio7"


@pytest.mark.parametrize(
    ("subsystem", "path", "named"),
    [
        ("usb", "/usb1/1-2", {"usb:1-2"}),
        ("usb", "/usb1/1-2/1-2.1/1-2.1:1.0", {"usb:1-2.1"}),
        ("input", "/usb1/1-2/1-2:1.0/0003:04F2:0402.0001/input/input5", {"usb:1-2"}),
        ("input", "/platform/i8042/serio0/input/input0", set()),
        ("block", "/usb1/1-2/1-2:1.0/host7/target7:0:0/7:0:0:0/block/sdb", set()),
        ("usb", "/usb1", set()),
    ],
)
def test_of_usb_devices_that_is_told_which_makes_one_or_its_use(
    subsystem: str, path: str, named: set[str]
) -> None:
    event = Uevent("add", f"/devices/pci0000:00/0000:00:14.0{path}", {"SUBSYSTEM": subsystem})
    for wished in (True, False):
        scan_requests = ScanRequests()
        scan_requests.take()
        uevents.request_scans(event, scan_requests, usb=wished)
        assert scan_requests.take() == frozenset(named if wished else ())


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"libudev\0\xfe\xed\xca\xfe", b"add", b"add@", b"@/x", b"add@relative", b"\xff\xfe\0\0"],
)
def test_what_is_no_message_of_the_kernel_is_ignored(data: bytes) -> None:
    assert uevents.parse(data) is None


def test_a_value_may_hold_an_equals_sign() -> None:
    event = uevents.parse(b"add@/devices/x\0A=b=c\0NOTHING\0")
    assert event == Uevent("add", "/devices/x", {"A": "b=c"})


def credentials(pid: int, uid: int, gid: int) -> list[tuple[int, int, bytes]]:
    data = struct.pack("3i", pid, uid, gid)
    return [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, data)]


def test_only_the_kernel_is_believed() -> None:
    assert uevents.from_kernel((0, 1), credentials(0, 0, 0))
    assert not uevents.from_kernel((4711, 1), credentials(0, 0, 0))
    assert not uevents.from_kernel((0, 1), credentials(4711, 0, 0))
    assert not uevents.from_kernel((0, 1), credentials(0, 1000, 1000))
    assert not uevents.from_kernel((0, 1), [])
    assert not uevents.from_kernel((0, 1), [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, b"short")])
    assert not uevents.from_kernel(None, credentials(0, 0, 0))


async def test_messages_of_other_senders_are_dropped_and_counted() -> None:
    other, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    heard: Heard[Uevent | None] = Heard()
    trusted = [False, True]
    reader = uevents.Reader(ours, trusted=lambda *_: trusted.pop(0))
    with other, ours:
        async with reading(reader, heard):
            other.send(b"add@/devices/fake\0")
            other.send(b"add@/devices/real\0")
            await heard.until_told(Uevent("add", "/devices/real"))
    assert heard.all == [Uevent("add", "/devices/real")]
    assert reader.foreign == 1


async def test_a_message_that_a_process_multicasts_is_dropped() -> None:
    heard: Heard[Uevent | None] = Heard()
    judged: Heard[bool] = Heard()

    def trusted(address: object, ancillary: uevents.Ancillary) -> bool:
        judged(uevents.from_kernel(address, ancillary))
        return judged.all[-1]

    with uevents.open_socket() as ours:
        reader = uevents.Reader(ours, trusted)
        async with reading(reader, heard):
            multicast([b"add@/devices/fake\0SUBSYSTEM=pci\0"])
            await judged.until_told(False)
    assert reader.foreign >= 1
    assert Uevent("add", "/devices/fake", {"SUBSYSTEM": "pci"}) not in heard.all


def multicast(messages: list[bytes]) -> None:
    """Send to the kernel's group, as a privileged process can."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as other:
        for message in messages:
            try:
                other.sendto(message, (0, 1))
            except PermissionError:
                pytest.skip("only root may send to the kernel's group")
            except OSError as error:  # the sender may hear of the listener's full buffer
                assert error.errno == errno.ENOBUFS


async def test_an_overflow_is_told_and_reading_goes_on() -> None:
    """The kernel drops what does not fit, and says ENOBUFS once."""
    heard: Heard[Uevent | None] = Heard()
    with uevents.open_socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader = uevents.Reader(ours, trusted=lambda *_: True)
        multicast([b"add@/devices/fake\0" + b"X=y\0" * 200] * 200)
        async with reading(reader, heard):
            await heard.until_told(None)
            multicast([b"add@/devices/after\0"])
            await heard.until_told(Uevent("add", "/devices/after"))


def test_the_buffer_is_large_even_beyond_the_limit_of_the_machine() -> None:
    with uevents.open_socket() as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, 33, uevents.BUFFER + 4096)  # SO_RCVBUFFORCE
        except PermissionError:
            pytest.skip("only root may have a buffer beyond the limit")
    with uevents.open_socket() as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * uevents.BUFFER


def test_without_descriptors_the_socket_is_an_error_of_ours() -> None:
    with free_descriptors(0), pytest.raises(KernelRefused) as caught:
        uevents.open_socket()
    assert caught.value.errno == errno.EMFILE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("         0          0 4294967295\n", True),
        ("         0     100000      65536\n", False),
        ("0 0 1000\n1000 100000 1\n", False),
        (None, False),
    ],
)
def test_only_the_initial_user_namespace_gets_events(
    tmp_path: Path, text: str | None, expected: bool
) -> None:
    if text is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/uid_map").write_text(text)
    assert uevents.are_received(Root(tmp_path)) is expected
