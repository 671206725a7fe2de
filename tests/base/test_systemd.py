# SPDX-License-Identifier: Apache-2.0
"""sd_notify against a real datagram socket, passed sockets, the journal's stream."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.base.systemd import DescriptorStore, Notifier, is_journal, listening_sockets
from tests.limits import free_descriptors

# the child is who the variable names: exec keeps the number of the process
CHILD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http"}
os.execv(sys.executable, [sys.executable, "-c", '''
import os
from nodeagent.base.systemd import listening_sockets
((name, sock),) = listening_sockets(os.environ)
print(name, sock.getsockname()[1], sock.getblocking(), sock.get_inheritable())
'''])
"""


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(str(tmp_path / "notify"))
        peer.settimeout(5)
        yield peer


def notifier(peer: socket.socket, **more: str) -> Notifier:
    return Notifier.from_environ({"NOTIFY_SOCKET": peer.getsockname(), **more})


def test_each_state_is_one_message(systemd: socket.socket) -> None:
    service = notifier(systemd)
    assert all((service.notify("READY=1"), service.notify("STOPPING=1"), service.notify("WATCHDOG=1")))
    assert [systemd.recv(4096) for _ in range(3)] == [b"READY=1", b"STOPPING=1", b"WATCHDOG=1"]


def test_an_abstract_socket_is_reached() -> None:
    name = f"nodeagent-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(f"\0{name}")
        peer.settimeout(5)
        assert Notifier.from_environ({"NOTIFY_SOCKET": f"@{name}"}).notify("READY=1")
        assert peer.recv(4096) == b"READY=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_systemd_every_call_does_nothing(environ: dict[str, str]) -> None:
    service = Notifier.from_environ({**environ, "WATCHDOG_USEC": "1000000"})
    assert not service.listening
    assert not any((service.notify("READY=1"), service.notify("STOPPING=1"), service.notify("WATCHDOG=1")))
    assert service.watchdog_interval is None


def test_a_systemd_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert not Notifier(str(tmp_path / "absent")).notify("READY=1")


def test_without_a_free_descriptor_nothing_is_said_and_nothing_fails(systemd: socket.socket) -> None:
    service = notifier(systemd)
    with free_descriptors(0):
        assert not service.notify("STOPPING=1")
    assert service.notify("STOPPING=1")


def test_a_full_socket_never_blocks(systemd: socket.socket) -> None:
    service = notifier(systemd)
    assert not all(service.notify("WATCHDOG=1") for _ in range(5000))


@pytest.mark.parametrize(
    ("more", "interval"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_systemd_asks(
    systemd: socket.socket, more: dict[str, str], interval: float | None
) -> None:
    assert notifier(systemd, **more).watchdog_interval == interval


def test_a_passed_socket_is_found_by_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.fileno()
        command = [sys.executable, "-c", CHILD, str(number)]
        done = subprocess.run(command, pass_fds=[number], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["http", str(server.getsockname()[1]), "False", "False"]


def test_a_stored_socket_comes_with_its_name_and_is_taken_once(
    systemd: socket.socket, tmp_path: Path
) -> None:
    store = DescriptorStore(notifier(systemd), ())
    with socket.socket(socket.AF_UNIX) as mine:
        mine.bind(str(tmp_path / "mine"))
        mine.listen()
        assert store.keep("one", mine)
    message, fds, _, _ = socket.recv_fds(systemd, 4096, 1)
    assert message == b"FDSTORE=1\nFDNAME=one"
    later = DescriptorStore(notifier(systemd), [("one", socket.socket(fileno=fds[0]))])
    taken = later.take("one")
    assert taken is not None
    assert later.take("one") is None
    with taken, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "mine"))  # it still listens


def test_stored_sockets_that_nobody_takes_are_closed_and_removed(systemd: socket.socket) -> None:
    mine, other = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
    store = DescriptorStore(notifier(systemd), [("one", mine), ("http", other)])
    store.drop_all()
    assert systemd.recv(4096) == b"FDSTOREREMOVE=1\nFDNAME=one"
    assert mine.fileno() == -1
    assert other.fileno() != -1  # of a socket unit
    other.close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": str(os.getpid())},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "many"},
    ],
)
def test_what_was_passed_to_another_process_is_left_alone(environ: dict[str, str]) -> None:
    assert listening_sockets(environ) == ()


def test_a_stream_is_the_journal_s_if_it_is_the_one_that_systemd_names(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream, (tmp_path / "other").open("w") as other:
        stat = os.fstat(stream.fileno())
        environ = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}
        assert is_journal(environ, stream)
        assert not is_journal(environ, other)
        assert not is_journal({}, stream)
        assert not is_journal(environ, io.StringIO())
