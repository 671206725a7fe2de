# SPDX-License-Identifier: Apache-2.0
"""Extended GPU Memory: the node of each socket and its GPUs, in both forms in which a kernel tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import nvidia
from nodeagent.sim.host import SimulatedHost
from tests.looking import Looks

GPUS = ("0008:01:00.0", "0009:01:00.0")
WANTED = (("/dev/egm4", GPUS),)


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    simulated = SimulatedHost(tmp_path)
    simulated.node("/dev/egm4")
    return simulated


@pytest.mark.parametrize(
    "text", ["0008:01:00.0\n0009:01:00.0", "0009:01:00.0 0008:01:00.0", "0008:01:00.0 0009:01:00.0 what"]
)
def test_the_gpus_of_a_socket_are_in_a_file(host: SimulatedHost, tmp_path: Path, text: str) -> None:
    host.write_file("/sys/class/egm/egm4/gpu_devices", text)
    assert nvidia.find_egm_nodes(Root(tmp_path)) == WANTED
    assert Looks(Root(tmp_path)).full().egm == WANTED


def test_the_gpus_of_a_socket_are_links(host: SimulatedHost, tmp_path: Path) -> None:
    host.write_file("/sys/class/egm/egm4/egm_size", "0x100000000")
    for gpu in GPUS:
        host.tree.link(f"/sys/class/egm/egm4/{gpu}", f"/sys/bus/pci/devices/{gpu}")
    assert nvidia.find_egm_nodes(Root(tmp_path)) == WANTED


def test_what_has_no_node_or_no_gpus_is_left_out(host: SimulatedHost, tmp_path: Path) -> None:
    host.write_file("/sys/class/egm/egm4/gpu_devices", "")
    host.write_file("/sys/class/egm/egm5/gpu_devices", GPUS[0])
    host.write_file("/sys/class/egm/version", "1")
    assert nvidia.find_egm_nodes(Root(tmp_path)) == ()


def test_another_look_at_the_same_memory_changes_nothing(host: SimulatedHost, tmp_path: Path) -> None:
    host.write_file("/sys/class/egm/egm4/gpu_devices", " ".join(GPUS))
    looks = Looks(Root(tmp_path))
    before = looks.full()
    assert looks.full(before) is before
