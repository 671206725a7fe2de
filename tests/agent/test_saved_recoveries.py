# SPDX-License-Identifier: Apache-2.0
"""The saved states of recoveries: of this binding of the device, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.agent import recoveries
from nodeagent.base.errors import KernelRefused
from nodeagent.base.state import RECOVERIES
from nodeagent.kernel.root import Root
from nodeagent.model.host import Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.sim.host import SimulatedHost
from tests import exhausted
from tests.sim import hosts

ONE, TWO = (PciAddress(hosts.address(number)) for number in (0, 1))
VERDICTS = {ONE: Recovery.FAILED, TWO: Recovery.RUNNING}


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return hosts.many(tmp_path, 2)


@pytest.fixture
def root(host: SimulatedHost) -> Root:
    return Root(host.directory)


def test_what_was_saved_is_loaded(root: Root) -> None:
    recoveries.save(root, VERDICTS)
    assert recoveries.load(root) == VERDICTS


def test_without_verdicts_there_is_no_record(root: Root) -> None:
    recoveries.save(root, VERDICTS)
    recoveries.save(root, {})
    recoveries.save(root, {})
    assert not Path(RECOVERIES.path(root.prefix)).exists()
    assert recoveries.load(root) == {}


def test_a_device_that_was_bound_anew_or_replaced_meanwhile_has_no_verdict(
    root: Root, host: SimulatedHost
) -> None:
    recoveries.save(root, VERDICTS)
    host.bind(ONE, "nouveau")
    host.unplug(TWO)
    assert recoveries.load(root) == {}


@pytest.mark.parametrize("text", ["[]", "3", '{"0000:01:00.0": 3}', '{"x": {"verdict": "failed"}}'])
def test_a_record_that_makes_no_sense_is_none(root: Root, text: str) -> None:
    path = Path(RECOVERIES.path(root.prefix))
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"recoveries": {text}}}')
    assert recoveries.load(root) == {}


def test_an_unknown_verdict_is_none(root: Root) -> None:
    recoveries.save(root, VERDICTS)
    path = Path(RECOVERIES.path(root.prefix))
    path.write_text(path.read_text().replace("failed", "undecided"))
    assert recoveries.load(root) == {TWO: Recovery.RUNNING}


def test_a_record_that_cannot_be_opened_now_is_no_empty_one(root: Root) -> None:
    recoveries.save(root, VERDICTS)
    with exhausted.no_descriptors(), pytest.raises(KernelRefused):
        recoveries.load(root)
