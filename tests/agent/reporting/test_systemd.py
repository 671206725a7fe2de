# SPDX-License-Identifier: Apache-2.0
"""What systemd is told: one line that says what is wrong first, sent when it changes; reloads in brackets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.agent.reporting import systemd
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.systemd import Notifier
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.host import Kind
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.problem import ProblemCode, wrong
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import (
    NO_CHANGES,
    EventsStatus,
    HostStatus,
    KubeletStatus,
    ResourceStatus,
    Status,
)
from tests.facts import names

HELD = Reason(ReasonCode.GROUP_HELD, "its group is held", "")


def resource(name: str, *, registered: bool = True, unhealthy: int = 0) -> ResourceStatus:
    """One with three devices."""
    devices = tuple(
        Device(DeviceId(f"{name}-{number}"), HELD if number < unhealthy else None) for number in range(3)
    )
    made = Resource(ResourceName(name), Kind.PCI, devices)
    return ResourceStatus.of(made, registered, int(registered), None)


def status(*resources: ResourceStatus, present: bool = True, problems: tuple[str, ...] = ()) -> Status:
    """A Status with these problems; one that is about a device begins with its resource and its id."""
    found = Status(
        version="0",
        pid=1,
        uptime_seconds=1.0,
        root="/",
        kubelet=KubeletStatus("/k.sock", present, "answers", True),
        host=HostStatus(1, 1, 0, True, (), EventsStatus("uevents", 0, 0, 0, 0)),
        resources=resources,
        changes=NO_CHANGES,
        holders={},
        subsystems={},
        problems=(),
    )
    return found.with_findings(
        wrong(ProblemCode.CHANGE, "a/a-0" if text.startswith("a: a-0 ") else "", text) for text in problems
    )


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (status(resource("a"), resource("b")), "2 resources, 6 of 6 devices Healthy, kubelet connected"),
        (
            status(resource("a", unhealthy=1), problems=("a: a-0 is Unhealthy: its group is held",)),
            "1 resources, 2 of 3 devices Healthy, kubelet connected",
        ),
    ],
    ids=["all is well", "held is not wrong"],
)
def test_the_line_has_the_numbers(told: Status, expected: str) -> None:
    assert systemd.line(told) == expected


def test_the_line_counts_the_resources_that_are_not_registered() -> None:
    names(systemd.line(status(resource("a"), resource("b", registered=False))), 2, "6 of 6", "1 of 2")


def test_the_line_says_what_is_wrong_first() -> None:
    away = status(
        resource("a", registered=False),
        present=False,
        problems=("the devices in use are not known: no answer",),
    )
    wrong, numbers = systemd.line(away).split(" | ")
    names(wrong, "kubelet")
    names(numbers, 1, "3 of 3", "/k.sock")
    wrong, numbers = systemd.line(status(problems=("first\nline", "second"))).split(" | ")
    assert wrong == "first line"
    names(numbers, 0, "0 of 0")


def test_a_loop_that_has_stopped_comes_before_all_else_and_long_texts_are_cut() -> None:
    told = systemd.line(status(problems=("x" * 500,)), "offering: work")
    assert told.startswith("stuck: offering: work | ")
    assert len(systemd.line(status(problems=("x" * 500,)))) < 300


class Systemd:
    """Its end of the socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(str(path))
        self.notifier = Notifier(str(path))

    async def hears(self) -> str:
        """The next message."""
        with anyio.fail_after(5):
            return (await asyncio.get_running_loop().sock_recv(self.socket, 4096)).decode()

    def heard_more(self) -> bool:
        """True if there is another message."""
        try:
            return bool(self.socket.recv(4096))
        except BlockingIOError:
            return False


@asynccontextmanager
async def listening(tmp_path: Path) -> AsyncIterator[Systemd]:
    peer = Systemd(tmp_path / "notify")
    yield peer
    peer.socket.close()


async def test_the_line_is_sent_when_it_is_another_one_and_not_before(tmp_path: Path) -> None:
    present, snapshots = [True], Snapshots(Snapshot())
    async with listening(tmp_path) as peer, anyio.create_task_group() as tasks:
        watchdog = systemd.Watchdog(peer.notifier, dict, timeouts=Timeouts())

        def now() -> Status:
            return status(present=present[0])

        tasks.start_soon(systemd.StatusLine(peer.notifier, snapshots, now, watchdog, timeouts=Timeouts()).run)
        assert (await peer.hears()).endswith("kubelet connected")
        snapshots.touch()
        await anyio.sleep(2 * Timeouts().status_line_pause)
        assert not peer.heard_more()
        present[0] = False
        snapshots.touch()
        assert (await peer.hears()).endswith("waiting for /k.sock")
        tasks.cancel_scope.cancel()


async def test_where_nobody_listens_nothing_is_made_up() -> None:
    notifier, snapshots = Notifier(None), Snapshots(Snapshot())

    def now() -> Status:
        pytest.fail("not asked")

    watchdog = systemd.Watchdog(notifier, dict, timeouts=Timeouts())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(systemd.StatusLine(notifier, snapshots, now, watchdog, timeouts=Timeouts()).run)
        await anyio.wait_all_tasks_blocked()
        snapshots.touch()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_a_reload_stands_between_two_words(tmp_path: Path) -> None:
    async with listening(tmp_path) as peer:
        said: list[str] = []

        async def read_again() -> None:
            said.append(await peer.hears())
            assert not peer.heard_more(), "ready comes after the reading"

        await systemd.reload(peer.notifier, read_again, Timeouts().config_reload)
        word, stamp = said[0].splitlines()
        assert word == "RELOADING=1"
        assert stamp.removeprefix("MONOTONIC_USEC=").isdecimal()
        assert await peer.hears() == "READY=1"


async def test_a_reload_that_fails_ends_as_well(tmp_path: Path) -> None:
    async def fails() -> None:
        raise OSError("x")

    async with listening(tmp_path) as peer:
        with pytest.raises(OSError, match="x"):
            await systemd.reload(peer.notifier, fails, Timeouts().config_reload)
        assert [(await peer.hears())[:5], await peer.hears()] == ["RELOA", "READY=1"]
