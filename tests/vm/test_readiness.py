# SPDX-License-Identifier: Apache-2.0
"""``nodeagent check`` on a real kernel with and without an IOMMU, and what VFIO itself says there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.vm import kernels, machine, samples
from tests.vm.machine import Setup

PROGRAM = "tests.vm.guest.ready"
KIND = "release"


def told(job: Path, words: str, iommu: str = Setup.iommu) -> dict[str, Any]:
    """What came of a boot of that kind."""
    kernel = kernels.kernel(KIND)
    boot = machine.boot(kernel, samples.build(KIND), job, Setup(PROGRAM, words, iommu))
    assert boot.ended_by_itself, boot.tails()
    found: dict[str, Any] = json.loads((job / "results/ready.json").read_text())
    return found


@pytest.mark.parametrize(
    ("words", "given", "interrupts"),
    [("intel_iommu=on", "yes", "ok"), ("intel_iommu=on intremap=off", "EPERM", "wrong")],
)
def test_what_is_said_of_interrupts_is_what_vfio_does(
    tmp_path: Path, words: str, given: str, interrupts: str
) -> None:
    found = told(tmp_path / "job", words)
    assert found["given"] == given
    assert found["lines"]["IOMMU"]["verdict"] == "ok"
    line = found["lines"]["interrupt remapping"]
    assert line["verdict"] == interrupts
    assert ("intremap=off" in line.get("hint", "")) == (interrupts == "wrong")


@pytest.mark.parametrize(
    ("words", "iommu", "seen", "to_do"),
    [
        ("intel_iommu=off", Setup.iommu, "intel_iommu=off", "intel_iommu=off"),
        ("intel_iommu=on", "", "firmware", "virtual machine"),
    ],
    ids=["switched off", "absent"],
)
def test_an_iommu_that_is_off_is_told_with_its_cause(
    tmp_path: Path, words: str, iommu: str, seen: str, to_do: str
) -> None:
    found = told(tmp_path / "job", words, iommu=iommu)
    assert found["given"] == "not bound"
    line = found["lines"]["IOMMU"]
    assert line["verdict"] == "wrong"
    assert seen in line["message"]
    assert to_do in line["hint"]
