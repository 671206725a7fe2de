# SPDX-License-Identifier: Apache-2.0
"""The service is killed while a write of it sleeps in the kernel: systemd starts another within seconds.

The write is a process of its own, which SIGKILL does not end. With ``KillMode=process`` systemd does not wait
for it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.building import Packages
from tests.packaging.machine import Machine, until
from tests.packaging.test_service import DROP_IN, NODE, ON_THE_NODE, health_at, kubelet

CARD = f"{NODE}/sys/bus/pci/devices/0000:60:00.0"
NUMBER = f"{CARD}/sriov_numvfs"
RULE = 'sriov: [{match: [{vendors: ["8086"]}], numVFs: 2}]\n'
FROZEN = "/srv/frozen"
AT_ONCE = 5.0  # seconds, RestartSec=2s among them
REGISTERED = "NODEAGENT_EVENT=resource-registered"
ADMIT, ADMITTED = "/srv/admit", "/srv/admitted"
SCRIPT = f"""
import anyio
from pathlib import Path
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
async def main():
    host = SimulatedHost(Path('{NODE}'))
    gpu = dict(vendor='10de', device='1eb8', pci_class='030200', driver='vfio-pci', group=1)
    host.add_function('0000:10:00.0', **gpu)
    card = dict(vendor='8086', device='1572', pci_class='020000', driver='i40e', group=60, sriov=4)
    host.add_function('0000:60:00.0', **card)
    async with FakeKubelet('{NODE}') as kubelet:
        while not Path('{ADMIT}').exists():
            await anyio.sleep(0.05)
        pod = await kubelet.admit(Pod('ns', 'vm', [{{'nvidia.com/TU104GL_TESLA_T4': 1}}]))
        Path('{ADMITTED}').write_text(pod.message or pod.phase)
        await anyio.sleep_forever()
anyio.run(main)
"""


@contextlib.contextmanager
def hanging(machine: Machine, path: str, image: Path) -> Iterator[None]:
    """Who writes to this file sleeps in the kernel until the end, as tests/freezing.py has it."""
    with image.open("wb") as file:
        file.truncate(4 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    loop = subprocess.run(
        ["losetup", "--find", "--show", image], check=True, capture_output=True, text=True
    ).stdout.strip()
    number = os.stat(loop).st_rdev
    node = f"mknod /dev/frozen b {os.major(number)} {os.minor(number)}"
    try:
        machine.run(f"{node} && mkdir {FROZEN} && mount /dev/frozen {FROZEN}")
        machine.run(f"mv {path} {FROZEN}/file && ln -s {FROZEN}/file {path}")
        machine.run(f"fsfreeze --freeze {FROZEN}")
        try:
            yield
        finally:
            machine.run(f"fsfreeze --unfreeze {FROZEN}; umount --lazy {FROZEN}")
    finally:
        subprocess.run(["losetup", "--detach", loop], check=True)


@pytest.fixture
def served(installed: Machine, packages: Packages) -> Machine:
    """A made-up node with a kubelet; the service is to be started, and its watchdog is not patient."""
    installed.run(f"dpkg -i {installed.put(packages.demo_deb)} && mkdir -p {NODE}")
    installed.write(f"{DROP_IN}/node.conf", f"{ON_THE_NODE}ReadWritePaths=-{FROZEN}\nWatchdogSec=6s\n")
    kubelet(installed, SCRIPT)
    return installed


def started(machine: Machine, configuration: str) -> str:
    """Start the service with these settings; its process."""
    machine.write(f"{NODE}/etc/nodeagent/config.yaml", configuration)
    machine.run("systemctl daemon-reload && systemctl restart nodeagent")
    machine.until_active()
    until(lambda: machine.journal("-q", REGISTERED), "the kubelet knows it")
    return machine.show("MainPID")


def test_a_service_that_is_killed_while_a_write_sleeps_serves_again_within_seconds(
    served: Machine, tmp_path: Path
) -> None:
    with hanging(served, NUMBER, tmp_path / "frozen.img"):
        first = started(served, RULE)
        until(lambda: "D" in served.says(f"ps -o stat= --ppid {first}"), "its write sleeps")
        writer = served.says(f"ps -o pid= --ppid {first}").strip()
        before = time.monotonic()
        served.run(f"kill -KILL {first}")
        until(lambda: len(served.journal("-q", REGISTERED).splitlines()) == 2, "the kubelet knows another")
        assert time.monotonic() - before < AT_ONCE
        served.until_active()
        assert "D" in served.says(f"ps -o stat= -p {writer}"), "the write of the first sleeps on"
        assert f"pid {served.show('MainPID')}" in served.says(f"nodeagent --root {NODE} status")
        until(lambda: health_at(served, "127.0.0.1:9481") == "200", "its health is served")
        served.write(ADMIT, "")
        assert until(lambda: served.says(f"cat {ADMITTED}"), "the kubelet has asked it") == "Running"
