# SPDX-License-Identifier: Apache-2.0
"""The record of vGPU types: whole or as before, and never a reason to fail when it is read."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from nodeagent.agent.changing import ledger
from nodeagent.agent.changing.ledger import LedgerKeeper
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import Root
from nodeagent.model.change import set_num_vfs
from nodeagent.model.snapshot import Ledger, Snapshot
from tests import exhausted
from tests.facts import names

RECORD = Ledger({"0000:3b:00.4": "557"}, {"557": "NVIDIA A40-24Q"}, {"0000:3b:00.4": ("556", "557")})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "run/nodeagent/vgpu-types.json"
    ledger.FILE.save(str(path), RECORD)
    assert ledger.FILE.load(str(path)) == RECORD
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"types": 3}', '{"types": {"a": 1}}', '{"listed": {"a": "b"}}']
)
def test_a_record_that_was_not_written_by_us_is_an_empty_one_and_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    assert [ledger.FILE.load(str(path)) for _ in range(2)] == [Ledger(), Ledger()]
    (told,) = caplog.messages
    names(told, "record.json.broken")
    assert (tmp_path / "record.json.broken").read_text() == text


def test_a_record_that_is_not_there_is_an_empty_one(tmp_path: Path) -> None:
    assert ledger.FILE.load(str(tmp_path / "none.json")) == Ledger()


def test_a_write_that_breaks_off_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    path = str(tmp_path / "vgpu-types.json")
    ledger.FILE.save(path, RECORD)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))  # as on a disk that is full
    try:
        with pytest.raises(KernelRefused, match=path):
            ledger.FILE.save(path, Ledger({"0000:3b:00.5": "558"}, {"558": "NVIDIA A40-48Q"}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ledger.FILE.load(path) == RECORD


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a directory should be")
    with pytest.raises(KernelRefused, match=r"run/vgpu-types\.json"):
        ledger.FILE.save(str(tmp_path / "run/vgpu-types.json"), RECORD)


def test_a_record_that_cannot_be_opened_now_is_no_empty_one(tmp_path: Path) -> None:
    path = str(tmp_path / "record")
    ledger.FILE.save(path, Ledger({"0000:3b:00.4": "557"}))
    with exhausted.no_descriptors(), pytest.raises(KernelRefused):
        ledger.FILE.load(path)


@pytest.mark.parametrize(("now", "ours"), [("1", True), ("0", False)])
async def test_a_switch_is_ours_if_it_is_on_in_the_moment_of_the_write_whatever_was_seen_before(
    tmp_path: Path, now: str, ours: bool
) -> None:
    address = "0000:3b:00.0"
    switch = tmp_path / f"sys/bus/pci/devices/{address}/sriov_drivers_autoprobe"
    switch.parent.mkdir(parents=True)
    switch.write_text(f"{now}\n")
    snapshots = Snapshots(Snapshot())
    await LedgerKeeper(Root(tmp_path), snapshots).save_before(set_num_vfs(address, 2, unprobed=True))
    assert (address in snapshots.now.ledger.unprobed) is ours
