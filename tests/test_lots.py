# SPDX-License-Identifier: Apache-2.0
"""No test is left out for being run in lots, and no failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, lots

ENDLESS = """\
import os, pathlib, time

def test_it():
    pathlib.Path({!r}).write_text(str(os.getpid()))
    time.sleep(60)
"""
SAYS = "import sys; print({!r}); sys.exit({})"


def says(text: str, code: int = 0) -> list[str]:
    return [sys.executable, "-c", SAYS.format(text, code)]


def test_every_module_of_the_black_box_is_in_one_lot_and_all_else_is_in_the_last() -> None:
    *waiting, (everything, *ignored) = lots.lots()
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/blackbox/**/test_*.py")}
    alone = [module for lot in waiting for module in lot]
    assert {*alone} < modules
    assert len({*alone}) == len(alone)
    assert everything == "tests"
    assert {*ignored} == {f"--ignore={module}" for module in alone}


def test_each_lot_is_told_whole(capfd: pytest.CaptureFixture[str]) -> None:
    assert lots.side_by_side([says("one"), says("two"), says("three")]) == 0
    assert capfd.readouterr().out.split() == ["one", "two", "three"]


@pytest.mark.parametrize("codes", [(1, 0, 0), (0, 5, 0), (0, 0, 2)])
def test_a_lot_that_fails_is_a_failure_of_all(codes: tuple[int, int, int]) -> None:
    assert lots.side_by_side([says("", code) for code in codes]) == 1


def test_a_run_that_is_told_to_end_leaves_no_lot_behind(tmp_path: Path) -> None:
    module, fifo = tmp_path / "test_endless.py", tmp_path / "pid"
    os.mkfifo(fifo)
    module.write_text(ENDLESS.format(str(fifo)))
    command = [sys.executable, "-m", "tests.lots", "-q", str(module)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as run:
        pid = fifo.read_text()
        run.terminate()
        assert run.wait(30) == 1
    assert not Path("/proc", pid).exists()
