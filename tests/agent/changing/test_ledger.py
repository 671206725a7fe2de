# SPDX-License-Identifier: Apache-2.0
"""The ledger on disk: whole or as before, of its types, and taken over from the release before."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from nodeagent.agent.changing import ledger
from nodeagent.agent.changing.ledger import LedgerKeeper
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import KernelRefused
from nodeagent.base.state import LEDGER
from nodeagent.kernel.root import Root
from nodeagent.model.change import Ledger, set_num_vfs
from nodeagent.model.snapshot import Snapshot
from tests.facts import names

RECORD = Ledger({"0000:3b:00.4": "557"}, {"557": "NVIDIA A40-24Q"}, {"0000:3b:00.4": ("556", "557")})


def path(prefix: Path) -> Path:
    return Path(LEDGER.path(str(prefix)))


def test_a_saved_ledger_is_read_again(tmp_path: Path) -> None:
    ledger.SECTION.save(str(tmp_path), RECORD)
    assert ledger.SECTION.load(str(tmp_path)) == RECORD


@pytest.mark.parametrize("text", ["[]", '{"types": 3}', '{"types": {"a": 1}}', '{"listed": {"a": "b"}}'])
def test_a_ledger_of_other_types_is_an_empty_one_and_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    at = path(tmp_path)
    at.parent.mkdir(parents=True)
    at.write_text(f'{{"ledger": {text}}}')
    assert [ledger.SECTION.load(str(tmp_path)) for _ in range(2)] == [Ledger(), Ledger()]
    (told,) = caplog.messages
    names(told, "state.json.broken", "ledger")
    assert at.with_suffix(".json.broken").read_text() == f'{{"ledger": {text}}}'


def test_a_write_that_breaks_off_leaves_the_ledger_as_it_was(tmp_path: Path) -> None:
    prefix = str(tmp_path)
    ledger.SECTION.save(prefix, RECORD)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))  # as on a disk that is full
    try:
        with pytest.raises(KernelRefused, match=str(path(tmp_path))):
            ledger.SECTION.save(prefix, Ledger({"0000:3b:00.5": "558"}, {"558": "NVIDIA A40-48Q"}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ledger.SECTION.load(prefix) == RECORD


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
