# SPDX-License-Identifier: Apache-2.0
"""Logging: the catalogue is closed and stable, and every place gets each event as one record.

journald is a real datagram socket here; the frames are read by a parser of journald's own format.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.base import log, log_handlers
from nodeagent.base.errors import InternalError
from tests.conftest import Said
from tests.facts import names


@pytest.fixture(autouse=True)
def plain_logging() -> Iterator[None]:
    """Give the process's loggers back as they were."""
    root, ours = logging.getLogger(), logging.getLogger(log.LOGGER)
    before = (list(root.handlers), root.level, ours.level)
    yield
    for handler in [handler for handler in root.handlers if handler not in before[0]]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(before[1])
    ours.setLevel(before[2])


class Peer:
    """journald's end: a datagram socket, and a parser for what arrives."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(5)

    def fields(self) -> dict[str, str]:
        """The fields of the next record, which has each of them once."""
        record = self.record()
        assert len(dict(record)) == len(record)
        return dict(record)

    def record(self) -> list[tuple[str, str]]:
        """The fields of the next record, in their order."""
        return parsed(self.socket.recv(1 << 20))


def parsed(data: bytes) -> list[tuple[str, str]]:
    """The fields of a record."""
    found: list[tuple[str, str]] = []
    while data:
        line, _, data = data.partition(b"\n")
        key, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(data[:8], "little")
            value, data = data[8 : 8 + size], data[8 + size :]
            assert data[:1] == b"\n"
            data = data[1:]
        found.append((key.decode(), value.decode()))
    return found


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    found = Peer(tmp_path / "journal")
    yield found
    found.socket.close()


def setup(style: str, stream: io.TextIOBase, *, level: str = "info", path: str = "/nonexistent") -> None:
    assert isinstance(stream, io.StringIO | io.TextIOWrapper)
    log_handlers.setup(style, level, {}, stream, 60.0, path)


def say(devices: int = 3) -> None:
    log.event(log.RESOURCE_REGISTERED, resource="example.com/gpu", devices=devices)


def test_names_and_ids_are_unique_and_well_formed() -> None:
    events = log.catalogue()
    assert len({event.id for event in events}) == len({event.name for event in events}) == len(events)
    for event in events:
        assert re.fullmatch(r"[0-9a-f]{32}", event.id)
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", event.name)
        assert not set(event.fields) & set(event.also)
        ours = {"time", "level", "message", "event", "priority", "logger", "exception"}
        assert not ours & {*event.fields, *event.also}


def test_the_catalogue_keeps_the_ids_that_people_search_for() -> None:
    assert log.RESOURCE_REGISTERED.id == "b264321f0d2a4165a6378e22e4c40702"
    assert log.KUBELET_UNREACHABLE.id == "57caa645c4a940828c454051467ecdb6"


def test_missing_and_foreign_fields_are_our_own_fault() -> None:
    with pytest.raises(InternalError, match="missing fields \\['devices'\\]"):
        log.event(log.RESOURCE_REGISTERED, resource="x")
    with pytest.raises(InternalError, match="unknown fields \\['colour'\\]"):
        log.event(log.POD_RESOURCES_AVAILABLE, colour="red")


def test_a_field_that_may_be_left_out_is_left_out_where_there_is_none(peer: Peer) -> None:
    setup("journald", io.StringIO(), path=peer.path)
    log.event(log.DEVICE_ADDED, resource="example.com/kvm", device="kvm-0", pci_address=None)
    assert "NODEAGENT_PCI_ADDRESS" not in peer.fields()
    with pytest.raises(InternalError, match="missing fields \\['device'\\]"):
        log.event(log.DEVICE_ADDED, resource="example.com/kvm", device=None)


def test_journald_gets_native_fields(peer: Peer) -> None:
    setup("journald", io.StringIO(), path=peer.path)
    log.event(
        log.DEVICE_UNHEALTHY,
        resource="example.com/gpu",
        device="0000:86:00.0",
        pci_address="0000:86:00.0",
        reason="group-held",
        text="its group is held",
        hint="wait",
    )
    fields = peer.fields()
    assert fields["MESSAGE_ID"] == log.DEVICE_UNHEALTHY.id
    assert fields["NODEAGENT_EVENT"] == "device-unhealthy"
    assert fields["PRIORITY"] == "4"
    assert fields["NODEAGENT_PCI_ADDRESS"] == "0000:86:00.0"
    assert fields["NODEAGENT_RESOURCE"] == "example.com/gpu"
    names(fields["MESSAGE"], "example.com/gpu", "0000:86:00.0", "its group is held", "wait")


def test_a_value_with_lines_cannot_forge_a_field(peer: Peer) -> None:
    setup("journald", io.StringIO(), path=peer.path)
    log.event(log.CONFIG_REFUSED, error="first\nPRIORITY=0\nlast")
    fields = peer.fields()
    assert fields["NODEAGENT_ERROR"] == "first\nPRIORITY=0\nlast"
    assert fields["PRIORITY"] == "3"


def test_a_long_value_is_cut(peer: Peer) -> None:
    stream = io.StringIO()
    setup("journald", stream, path=peer.path)
    log.event(log.CONFIG_REFUSED, error="ü" * 100_000)
    fields = peer.fields()
    assert fields["MESSAGE_ID"] == log.CONFIG_REFUSED.id
    assert set(fields["NODEAGENT_ERROR"]) == {"ü"}
    assert len(fields["NODEAGENT_ERROR"]) == 48 * 1024 // 2
    assert stream.getvalue() == ""


def test_a_record_too_large_for_a_datagram_goes_to_stderr(peer: Peer) -> None:
    stream = io.StringIO()
    setup("journald", stream, path=peer.path)
    log.event(log.ALLOCATED, resource="example.com/gpu", device=tuple("x" * 1000 for _ in range(1000)))
    names(stream.getvalue(), "example.com/gpu")


def test_a_value_for_each_of_several_devices_can_be_searched_for(peer: Peer) -> None:
    setup("journald", io.StringIO(), path=peer.path)
    log.event(log.ALLOCATED, resource="example.com/gpu", device=("a", "b"), group=("7",), pod=())
    record = peer.record()
    assert [value for key, value in record if key == "NODEAGENT_DEVICE"] == ["a", "b"]
    names(dict(record)["MESSAGE"], "example.com/gpu", "a,b")
    assert "NODEAGENT_POD" not in dict(record)


def test_a_missing_journald_costs_nothing_and_stderr_gets_the_line() -> None:
    stream = io.StringIO()
    setup("journald", stream)
    say()
    names(stream.getvalue().splitlines()[-1], "info", "example.com/gpu", 3)


def test_a_full_journald_never_blocks_and_the_rest_goes_to_stderr(peer: Peer) -> None:
    stream = io.StringIO()
    setup("journald", stream, path=peer.path)
    for number in range(5000):
        say(number)
        if stream.getvalue():
            break
    assert "registered" in stream.getvalue()
    assert peer.fields()["NODEAGENT_DEVICES"] == "0"


def test_a_restarted_journald_is_found_again(tmp_path: Path) -> None:
    stream = io.StringIO()
    path = tmp_path / "journal"
    setup("journald", stream, path=str(path))
    for _ in range(2):
        peer = Peer(path)
        say()
        assert peer.fields()["NODEAGENT_RESOURCE"] == "example.com/gpu"
        peer.socket.close()
        path.unlink()
    assert stream.getvalue() == ""


def test_text_is_one_line_whatever_the_values_hold() -> None:
    stream = io.StringIO()
    setup("text", stream)
    log.event(log.CONFIG_REFUSED, error="first\nsecond\r")
    assert stream.getvalue().count("\n") == 1
    assert "first\\nsecond\\r" in stream.getvalue()


def test_stderr_that_is_the_journal_gets_priorities_when_the_socket_is_away(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w+") as stream:
        info = os.fstat(stream.fileno())
        environ = {"JOURNAL_STREAM": f"{info.st_dev}:{info.st_ino}"}
        assert log_handlers.chosen("auto", environ, stream) == "journald"
        log_handlers.setup("auto", "info", environ, stream, 60.0, str(tmp_path / "absent"))
        log.event(log.POD_RESOURCES_UNAVAILABLE, error="x")
        stream.seek(0)
        assert stream.read().startswith("<4>")


def test_a_journal_stream_of_somebody_else_is_not_ours(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream:
        assert log_handlers.chosen("auto", {"JOURNAL_STREAM": "1:2"}, stream) == "json"
    assert log_handlers.chosen("auto", {"JOURNAL_STREAM": "1:2"}, io.StringIO()) == "json"


def test_auto_takes_text_on_a_terminal() -> None:
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as stream:
        assert log_handlers.chosen("auto", {}, stream) == "text"
    os.close(leader)


def test_json_lines_hold_the_fields_and_the_exception() -> None:
    stream = io.StringIO()
    setup("json", stream)
    say()
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("grpclib.server").exception("handler failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["resource"], first["devices"]) == (
        "resource-registered",
        "example.com/gpu",
        3,
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert (second["logger"], second["level"]) == ("grpclib.server", "error")
    assert "ValueError: why" in second["exception"]


def test_libraries_come_through_from_warnings_up(peer: Peer) -> None:
    setup("journald", io.StringIO(), level="debug", path=peer.path)
    logging.getLogger("asyncio").info("nothing")
    logging.getLogger("asyncio").warning("slow callback")
    assert peer.fields()["MESSAGE"] == "slow callback"


def test_the_level_holds_back_what_is_below_it() -> None:
    stream = io.StringIO()
    setup("text", stream, level="warning")
    say()
    log.event(log.NO_VFIO, text="the driver vfio-pci is not loaded")
    assert stream.getvalue().count("\n") == 1


def test_setting_up_again_replaces_the_place_and_leaves_others_alone() -> None:
    first, second = io.StringIO(), io.StringIO()
    others = list(logging.getLogger().handlers)
    setup("text", first)
    setup("text", second)
    say()
    assert (first.getvalue(), second.getvalue().count("\n")) == ("", 1)
    assert len(logging.getLogger().handlers) == len(others) + 1


def test_a_closed_stderr_does_not_stop_the_program() -> None:
    stream = io.StringIO()
    setup("json", stream)
    stream.close()
    say()


def unhealthy(device: str) -> None:
    log.event(log.DEVICE_UNHEALTHY, resource="example.com/gpu", device=device, text="why")


def test_what_is_said_again_and_again_is_left_out_and_what_is_not_the_same_is_not() -> None:
    stream = io.StringIO()
    setup("json", stream)
    for _ in range(500):
        unhealthy("a")
    for number in range(500):
        unhealthy(f"b{number}")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    written = [line["device"] for line in lines if line["event"] == "device-unhealthy"]
    assert written == ["a"] * log_handlers.REPEATED + [f"b{n}" for n in range(500)]
    (left_out,) = (line for line in lines if line["event"] == "lines-suppressed")
    assert (left_out["kind"], left_out["subject"]) == ("device-unhealthy", "example.com/gpu a")


def test_what_was_left_out_is_written_again_when_its_time_is_over() -> None:
    stream, clock = io.StringIO(), [1000.0]
    log_handlers.setup("json", "info", {}, stream, 60.0, clock=lambda: clock[0])
    for seconds in (0.0, 59.0, 1.0):
        clock[0] += seconds
        for _ in range(log_handlers.REPEATED):
            unhealthy("a")
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    several = ["device-unhealthy"] * log_handlers.REPEATED
    assert events == [*several, "lines-suppressed", *several]


def test_a_library_cannot_flood_the_log_either() -> None:
    stream = io.StringIO()
    setup("json", stream)
    for number in range(500):
        logging.getLogger("asyncio").warning("accept failed: %d", number)
    assert stream.getvalue().count("\n") == log_handlers.REPEATED + 1


def test_a_json_line_is_one_line_whatever_the_values_hold() -> None:
    stream = io.StringIO()
    setup("json", stream)
    error = "first\nsecond\r\x85\u2028\udcff"
    log.event(log.CONFIG_REFUSED, error=error, hint="h")
    log.event(log.ALLOCATED, resource="r", device=("a", "b"), group=("1",))
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["error"], first["hint"]) == (error, "h")
    assert (second["device"], second["group"]) == (["a", "b"], ["1"])


async def test_an_accept_without_descriptors_is_told_without_a_traceback(
    said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    context = {"message": "socket.accept() out of system resource", "exception": error, "socket": None}
    log_handlers.handle_loop_error(asyncio.get_running_loop(), context)
    (line,) = said(log.NO_DESCRIPTORS)
    assert line["error"] == "Too many open files"
    assert [record.exc_info for record in caplog.records] == [None]


@pytest.mark.parametrize("error", [ValueError("why"), OSError(errno.EMFILE, "elsewhere")])
async def test_all_else_is_told_as_asyncio_does(
    said: Said, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    log_handlers.handle_loop_error(
        asyncio.get_running_loop(), {"message": "a callback failed", "exception": error}
    )
    assert said(log.NO_DESCRIPTORS) == []
    assert [(record.name, record.exc_info is not None) for record in caplog.records] == [("asyncio", True)]
