# SPDX-License-Identifier: Apache-2.0
"""``nodeagent check`` on captured hosts, on this machine, and as somebody who may not look everywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli import main
from tests.facts import names
from tests.machines.capture import materialise

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(path.stem for path in HOSTS.glob("*.json"))
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def nobody() -> Iterator[None]:
    """This process may not do what only root may."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def checked(root: Path | str, capsys: Capture) -> dict[str, dict[str, Any]]:
    assert main.main(["--root", str(root), "check", "-o", "json"]) in (0, 3)
    return {line["check"]: line for line in json.loads(capsys.readouterr().out)["lines"]}


def hints(text: str) -> list[int]:
    """How many lines each advice takes."""
    found: list[int] = []
    for line in text.splitlines():
        if line.startswith("    to do: "):
            found.append(1)
        elif line.startswith(" " * 11) and not line.startswith(" " * 12):
            found[-1] += 1
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_captured_host_is_told_in_80_columns_with_advice_of_two_lines(
    name: str, tmp_path: Path, capsys: Capture
) -> None:
    materialise(HOSTS / f"{name}.json", tmp_path)
    assert main.main(["--root", str(tmp_path), "check"]) == 3, "there is no kubelet"
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    assert max(hints(told)) <= 2
    assert told.isascii()
    assert os.uname().release not in told
    assert str(tmp_path) not in told


def test_groups_of_a_real_kernel_are_judged_as_it_judges_them(tmp_path: Path, capsys: Capture) -> None:
    materialise(HOSTS / "6.12-vfio.json", tmp_path)
    lines = checked(tmp_path, capsys)
    assert lines["group 17"]["verdict"] == "wrong"
    assert "0000:03:00.1 (e1000e)" in lines["group 17"]["message"]
    assert lines["group 18"]["verdict"] == lines["groups of one"]["verdict"] == "ok"
    names(lines["groups of one"]["message"], 15, "0000:01:00.0", 16, "0000:02:00.0", 22)
    names(lines["ACS above group 18"]["message"], "0000:04:00.0", "conventional PCI")


def test_a_root_port_with_one_card_costs_nothing(tmp_path: Path, capsys: Capture) -> None:
    materialise(HOSTS / "6.12-groups.json", tmp_path)
    lines = checked(tmp_path, capsys)
    assert lines["group 11"]["verdict"] == "ok"
    assert not [check for check in lines if check.startswith("ACS")]


def test_a_vfio_without_an_iommu_is_no_isolation(tmp_path: Path, capsys: Capture) -> None:
    materialise(HOSTS / "6.12-iommufd-no-iommu-unsafe.json", tmp_path)
    lines = checked(tmp_path, capsys)
    assert lines["group 0"]["verdict"] == "wrong"
    assert "vfio-noiommu" in lines["group 0"]["message"]


def test_a_busy_host_keeps_its_network_and_its_disks(tmp_path: Path, capsys: Capture) -> None:
    materialise(HOSTS / "6.12-busy-host.json", tmp_path)
    seen = checked(tmp_path, capsys)["used by the host"]["message"]
    assert "eth0, default route" in seen
    assert "mounted on /mnt/data" in seen


def test_this_machine_can_be_checked(capsys: Capture) -> None:
    assert checked("/", capsys)["kernel"]["message"].startswith(os.uname().release)


@pytest.mark.usefixtures("nobody")
def test_who_is_not_root_is_told_what_was_not_looked_at(capsys: Capture) -> None:
    line = checked("/", capsys)["user"]
    assert line["verdict"] == "unseen"
    names(line["hint"], "root")
