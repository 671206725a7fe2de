# SPDX-License-Identifier: Apache-2.0
"""``nodeagent status``: in each form, and again whenever something differs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.from_thread
import pytest

from nodeagent import config
from nodeagent.cli import main, status
from nodeagent.model import plain
from nodeagent.model.problem import ProblemCode, wrong
from nodeagent.model.status import Status
from nodeagent.sim.host import SimulatedHost
from tests.facts import names
from tests.http.serving import serve_document
from tests.render.statuses import GPU, ONE, TWO, WELL
from tests.sim import hosts


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return hosts.many(tmp_path / "host", 1)


@pytest.fixture
def nobody() -> Iterator[None]:
    """This process may not do what only root may."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


@pytest.mark.parametrize("command", ["status", "config"])
@pytest.mark.usefixtures("nobody")
def test_who_may_not_ask_is_told_that_and_not_to_start_a_daemon(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "x").mkdir(mode=0)
        main.main([command, "--root", "/", "--status-socket", f"{directory}/x/status.sock"])
    told = capsys.readouterr().err
    names(told, "root", f"{directory}/x/status.sock")
    assert "systemctl" not in told
    assert "nodeagent run" not in told


class Daemon:
    """What a status socket answers; its time goes on with each question, of which the third is told."""

    def __init__(self) -> None:
        self.status = WELL
        self.asked = 0
        self.thrice = threading.Event()

    def answer(self) -> Any:
        self.asked += 1
        if self.asked == 3:
            self.thrice.set()
        return plain.dump(self.status._replace(uptime_seconds=60.0 * self.asked))


@contextmanager
def daemon(host: SimulatedHost) -> Iterator[Daemon]:
    """One that answers."""
    answering = Daemon()
    with anyio.from_thread.start_blocking_portal() as portal:
        path = host.path(config.load(config.Sources(host.directory, {}, {})).status.socket)
        task = portal.start_task_soon(serve_document, path, answering.answer)
        portal.call(anyio.wait_all_tasks_blocked)
        yield answering
        task.cancel()


def test_wide_has_every_device_and_its_holder(
    host: SimulatedHost, capsys: pytest.CaptureFixture[str]
) -> None:
    with daemon(host):
        assert main.main(["--root", host.directory, "status", "-o", "wide"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [ONE, GPU, "Healthy", "0", "ns/vm"] in rows
    assert [TWO, GPU, "node-missing", "-", "-"] in rows


def test_names_are_those_of_the_resources(host: SimulatedHost, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(host):
        assert main.main(["--root", host.directory, "status", "-o", "name"]) == 0
    assert capsys.readouterr().out == f"{GPU}\n"


def test_a_watch_prints_what_differs_and_ends_well_when_it_is_interrupted(host: SimulatedHost) -> None:
    command = [sys.executable, "-m", "nodeagent", "--root", host.directory, "status", "--watch"]
    with daemon(host) as answering, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        assert_printed(watch.stdout, WELL)
        assert answering.thrice.wait(20)
        answering.status = WELL.with_findings([wrong(ProblemCode.CHANGE, "", "it burns")])
        assert_printed(watch.stdout, answering.status)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 0


def assert_printed(stream: IO[str], value: Status) -> None:
    first, *rest = status.text(value).splitlines()
    assert stream.readline().startswith(first.partition(", up")[0])
    assert [stream.readline().rstrip("\n") for _ in rest] == rest


def test_a_watch_ends_when_the_daemon_is_away(
    host: SimulatedHost, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["--root", host.directory, "status", "-w"]) == 1
    names(capsys.readouterr().err, host.path("/run/nodeagent/status.sock"))


def test_on_the_machine_itself_its_service_is_to_be_started(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main.main(["status", "--root", "/", "--status-socket", f"{tmp_path}/status.sock"]) == 1
    names(capsys.readouterr().err.splitlines()[1], "sudo systemctl start nodeagent")
