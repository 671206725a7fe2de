# SPDX-License-Identifier: Apache-2.0
"""Advice on a captured host that lives on its devices: eth0 has the default route, a disk is mounted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nodeagent.cli import main
from tests.facts import names
from tests.machines.capture import materialise

HOSTS = Path(__file__).parent / "hosts"
RULES = """
resources:
- {name: example.com/nic, pci: [{vendors: ["8086"], devices: ["10d3"]}]}
- {name: example.com/disk, pci: [{classes: ["0108"]}]}
"""


@pytest.fixture
def at(tmp_path: Path) -> Path:
    materialise(HOSTS / "6.12-busy-host.json", tmp_path)
    return tmp_path


def configure(at: Path) -> None:
    (at / "etc/nodeagent").mkdir(parents=True)
    (at / "etc/nodeagent/config.yaml").write_text(RULES)


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("address", "used"),
    [
        ("01:00.0", ("eth0", "default route")),
        ("06:00.0", ("nvme1n1p1", "mounted on /mnt/data", "nvme1n1p2", "swap")),
    ],
)
def test_what_the_host_lives_on_is_to_be_left_out_of_the_rule_and_never_bound(
    at: Path, address: str, used: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "--root", at, "explain", address)
    names(text, *used)
    assert "vfio-pci" not in text
    configure(at)
    (to_do,) = (
        line for line in said(capsys, "--root", at, "explain", address).splitlines() if "to do" in line
    )
    names(to_do, "rule", *used)
    assert "vfio-pci" not in text


def test_a_saved_host_tells_what_it_uses(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = at / "saved.json"
    saved.write_text(said(capsys, "--root", at, "scan", "-o", "json"))
    text = said(capsys, "explain", "01:00.0", "--host", saved)
    names(text, "eth0", "default route")
    assert "vfio-pci" not in text


def test_what_is_idle_is_bound_if_the_host_can_do_without(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(at)
    text = said(capsys, "--root", at, "explain", "02:00.0")
    names(text, "0000:02:00.0", "NVMe controller", "vfio-pci")
    assert "/proc/1/mountinfo" not in text


def test_what_cannot_be_seen_is_said_before_anything_is_advised(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(at / "proc/1")
    configure(at)
    text = said(capsys, "--root", at, "explain", "02:00.0")
    before, _, advice = text.partition("vfio-pci")
    names(before, "/proc/1/mountinfo", "0000:02:00.0", "NVMe controller")
    assert "/proc/1/mountinfo" not in advice


def test_the_function_that_keeps_a_group_from_being_given_stays_with_the_host(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = at / "sys/bus/pci/devices/0000:03:00.0"
    (beside / "driver").unlink()
    (beside / "driver").symlink_to("../../../../bus/pci/drivers/vfio-pci")
    route = at / "proc/1/net/route"
    route.write_text(route.read_text().replace("eth0", "eth2"))
    flags = at / "sys/bus/pci/devices/0000:03:00.1/net/eth2/flags"
    flags.write_text("0x1003\n")
    configure(at)
    told = json.loads(said(capsys, "--root", at, "explain", "03:00.0", "-o", "json"))
    names(told["hint"], "0000:03:00.1", "eth2", "default route", "IOMMU group", "rules")
    assert "vfio-pci" not in told["hint"]
