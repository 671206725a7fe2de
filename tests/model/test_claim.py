# SPDX-License-Identifier: Apache-2.0
"""Records of prepared claims: their plain form, which the state file contains, and their names."""

from __future__ import annotations

from nodeagent.model import plain
from nodeagent.model.claim import Claim, ClaimDevice, ClaimFile, ClaimRef
from nodeagent.model.ids import ResourceName

REF = ClaimRef("vms", "gpu-1", "53764d0e-85a0-42b4-af5c-2046b460b1dc")
DEVICE = ClaimDevice(
    "gpu/good", "d/n", "pci-0000-65-00-0", ResourceName("nvidia.com/gpu"), "0000:65:00.0", ("0000:65:00.0",)
)


def test_a_claim_is_the_same_after_saving_and_loading() -> None:
    claim = Claim(REF, (DEVICE,), "gpu", "boot", ClaimFile("a.json", "{}"), (ClaimFile("b/c.json", "{}"),))
    assert plain.load(Claim, plain.dump(claim)) == claim


def test_a_claim_is_shown_by_namespace_and_name() -> None:
    assert str(REF) == "vms/gpu-1"


def test_a_container_names_the_request_without_its_subrequest() -> None:
    assert DEVICE.main_request == "gpu"
    assert DEVICE._replace(request="gpu").main_request == "gpu"
