# SPDX-License-Identifier: Apache-2.0
"""The daemon on real kernels: each test is one scenario that ran in the guest."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.vm.guest import scenarios
from tests.vm.guest.scenarios import Scenario
from tests.vm.machine import CHECKOUT, ONLY, Boot

_FAULTS = ("BUG:", "Oops", "Call Trace", "WARNING:", "blocked for more than")


def _named(scenario: Scenario) -> str:
    return scenario.name


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=_named)
def test_on_a_real_kernel(boot: Boot, scenario: Scenario) -> None:
    if ONLY and scenario.name not in ONLY:
        pytest.skip("not one of those asked for")
    path = boot.job / f"results/{scenario.name}.json"
    if not path.exists():
        pytest.fail(f"the guest did not come so far\n{boot.tails()}", pytrace=False)
    failure = json.loads(path.read_text())["failure"]
    if failure:
        pytest.fail(f"{failure}\n{boot.tails()}", pytrace=False)


def test_the_guest_ends_by_itself(boot: Boot) -> None:
    assert boot.ended_by_itself, boot.tails()


def test_the_kernel_reports_no_fault_of_its_own(boot: Boot) -> None:
    console = (boot.job / "console.log").read_text(errors="replace")
    assert [word for word in _FAULTS if word in console] == [], console[-4000:]


def test_the_daemon_shows_no_traceback_and_none_of_its_parts_has_failed(boot: Boot) -> None:
    log = (boot.job / "results/daemon.log").read_text()
    assert [word for word in ("Traceback", '"subsystem-failed"') if word in log] == [], boot.tails()


def test_a_machine_without_qemu_is_told_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.vm"],
        cwd=CHECKOUT,
        env={"PATH": "/nonexistent", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "qemu-system-x86_64" in done.stderr
    assert "Install qemu-system-x86," in done.stderr
