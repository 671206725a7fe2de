# SPDX-License-Identifier: Apache-2.0
"""``bind --at-boot`` in real boots: initramfs-tools and dracut, kmod and systemd-udevd act by its files.

Three boots of one disk: as it was installed, with the files, and after their release. The kernel's own record
of each driver that it tries on a device tells who had it, from the first moment on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vm import kernels, machine, samples, systems
from tests.vm.machine import Setup
from tests.vm.systems import System

PROGRAM = "tests.vm.guest.booted"
MADE = {
    "initramfs-tools": "update-initramfs -c -k all",
    "dracut": "dracut --force --regenerate-all",
}
OURS = {"10.0": "e1000e", "19.0": "nvme", "19.1": "e1000e"}  # by slot; their drivers of the host
OTHERS = {"11.0": "e1000e", "14.0": "nvme", "15.0": "e1000e", "18.0": "e1000e", "18.1": "e1000e"}


def booted(system: System, kind: str, job: Path, verb: str) -> dict[str, Any]:
    """What came of a boot, in which this verb was run."""
    job.mkdir()
    (job / "verb").write_text(verb)
    setup = Setup(PROGRAM, systems.WORDS, initramfs=system.initramfs, disk=system.disk)
    boot = machine.boot(system.kernel, samples.build(kind), job, setup)
    print(f"\n{job.name}: {boot.seconds:.0f} s")
    assert boot.ended_by_itself, boot.tails()
    found: dict[str, Any] = json.loads((job / "results/booted.json").read_text())
    return found


def drivers(found: dict[str, Any], functions: dict[str, str]) -> dict[str, str]:
    """Those that these functions have."""
    return {each: found["drivers"][each] for each in functions}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("tool", "kind"), [("initramfs-tools", "release"), ("dracut", "newer")])
def test_from_the_next_boot_on_no_driver_of_the_host_is_tried_until_it_is_released(
    tmp_path: Path, tool: str, kind: str
) -> None:
    system = systems.made(tool, kernels.kernel(kind), tmp_path)
    system.renewed(MADE[tool])
    found = booted(system, kind, tmp_path / "before", "bind --at-boot @10 @19")
    assert drivers(found, OURS) == OURS
    assert found["said"]["code"] == 0
    system.renewed(found["said"]["answer"]["then"])
    found = booted(system, kind, tmp_path / "bound", "release @10 @19")
    assert {each: found["tried"][each] for each in OURS} == {each: ["vfio-pci"] for each in OURS}
    assert drivers(found, OURS) == dict.fromkeys(OURS, "vfio-pci")
    assert drivers(found, OTHERS) == OTHERS
    assert found["said"]["code"] == 0
    system.renewed(found["said"]["answer"]["then"])
    found = booted(system, kind, tmp_path / "released", "")
    assert drivers(found, OURS) == OURS
    assert {each: found["tried"][each] for each in OURS} == {each: [OURS[each]] for each in OURS}
