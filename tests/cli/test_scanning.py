# SPDX-License-Identifier: Apache-2.0
"""``nodeagent scan``: which lines are shown, in which form, of this host and of a saved one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from tests.facts import names

Names = Callable[..., list[str]]


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return nodes.demo_node(tmp_path / "host")


@pytest.fixture
def named(host: SimulatedHost, capsys: pytest.CaptureFixture[str]) -> Names:
    """The addresses that a scan with these arguments shows."""

    def scan(*arguments: str) -> list[str]:
        assert main.main(["--root", host.directory, "scan", "-o", "name", *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    return scan


def test_without_arguments_all_devices_are_shown(named: Names) -> None:
    assert len(named()) == 19


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["3b:00.0"], ["0000:3b:00.0"]),
        (["0000:3B:00.0", "5e:00.1"], ["0000:3b:00.0", "0000:5e:00.1"]),
        (["3b:*"], [f"0000:3b:00.{number}" for number in range(4)]),
        (["*:00.3"], [f"0000:{bus}:00.3" for bus in ("3b", "5e", "86", "af")]),
        (["--class", "0302"], ["0000:d8:00.0"]),
        (["--class", "02", "--class", "0108"], ["0000:02:00.0", "0000:d8:01.0"]),
        (["d8:*", "--offered"], ["0000:d8:00.0"]),
        (["ff:*"], []),
    ],
    ids=str,
)
def test_addresses_and_classes_choose_what_is_shown(
    named: Names, arguments: list[str], shown: list[str]
) -> None:
    assert named(*arguments) == shown


def test_bridges_are_shown_on_request(named: Names, host: SimulatedHost) -> None:
    host.write("0000:3b:00.3", "class", "0x060400\n")
    assert "0000:3b:00.3" not in named()
    assert "0000:3b:00.3" in named("--bridges")
    assert named("3b:00.3") == ["0000:3b:00.3"], "who names it wants it"


def test_why_a_device_is_not_offered_is_in_the_last_column(
    host: SimulatedHost, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["--root", host.directory, "scan"]) == 0
    ends = {
        line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("0000:")
    }
    names(ends["0000:d8:01.0"], "class", "020000")
    assert ends["0000:3b:00.0"].endswith("nvidia.com/TU106_GEFORCE_RTX_2060_REV__A")


def test_a_saved_host_is_scanned_as_it_was(host: SimulatedHost, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "nodeagent", "--root", host.directory, "scan"]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    saved = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=True).stdout
    here = subprocess.run(
        [*command[:3], "scan", "--host", "-"], input=saved, capture_output=True, text=True, check=True
    )
    assert (here.stdout, here.stderr) == (there, "")
    fates = {each["id"]: each for each in json.loads(saved)["devices"]}
    assert len(fates) == 19
    names(fates["0000:d8:01.0"]["message"], "class", "020000")
    assert fates["0000:3b:00.0"]["matchedBy"] == "discovery"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--class", "xx"], "--class xx"),
        (["--class", "0"], "--class 0"),
        (["--offered", "-o", "json"], "-o json"),
        (["3b:*", "-o", "yaml"], "-o yaml"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(
    host: SimulatedHost, capsys: pytest.CaptureFixture[str], arguments: list[str], what: str
) -> None:
    assert main.main(["--root", host.directory, "scan", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"nodeagent: {what}")
