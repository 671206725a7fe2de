# SPDX-License-Identifier: Apache-2.0
"""Advice on a captured host that lives on its devices: eth0 has the default route, a disk is mounted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nodeagent.cli import main
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
        ("01:00.0", "in use by the host (eth0, default route)"),
        ("06:00.0", "in use by the host (nvme1n1p1, mounted on /mnt/data; nvme1n1p2, swap)"),
    ],
)
def test_what_the_host_lives_on_is_to_be_left_out_of_the_rule_and_never_bound(
    at: Path, address: str, used: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "--root", at, "explain", address)
    assert f"it is {used}\n" in text
    assert "vfio-pci" not in text
    configure(at)
    text = said(capsys, "--root", at, "explain", address)
    assert f"  to do: {used}: leave it out of the rule\n" in text
    assert "vfio-pci" not in text


def test_a_saved_host_tells_what_it_uses(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = at / "saved.json"
    saved.write_text(said(capsys, "--root", at, "scan", "-o", "json"))
    text = said(capsys, "explain", "01:00.0", "--host", saved)
    assert "it is in use by the host (eth0, default route)" in text
    assert "vfio-pci" not in text


def test_what_is_idle_is_bound_if_the_host_can_do_without(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(at)
    text = said(capsys, "--root", at, "explain", "02:00.0")
    assert "  to do: if this host can do without 0000:02:00.0 (an NVMe controller), bind it to vf" in text


def test_what_cannot_be_seen_is_said_before_anything_is_advised(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(at / "proc/1")
    configure(at)
    text = said(capsys, "--root", at, "explain", "02:00.0")
    assert "  to do: cannot be seen from here: what is mounted: /proc/1/mountinfo is not that" in text
    assert "; if this host can do without 0000:02:00.0 (an NVMe controller), bind it to vfio-pci" in text


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
    assert told["toDo"] == (
        "0000:03:00.1 is in use by the host (eth2, default route): "
        "leave all of its IOMMU group out of the rules"
    )
