# SPDX-License-Identifier: Apache-2.0
"""The service is killed while the kernel holds one of its threads: systemd starts another all the same.

A process that is killed ends for its parent when its last thread has ended (``delay_group_leader`` in
include/linux/sched/signal.h). What is left to systemd is the watchdog, and its patience with what SIGKILL
does not end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.packaging.building import Packages
from tests.packaging.machine import Machine, until
from tests.packaging.test_service import DROP_IN, NODE, ON_THE_NODE, health_at, kubelet

NUMBER = f"{NODE}/sys/bus/pci/devices/0000:60:00.0/sriov_numvfs"
RULE = 'sriov: [{match: [{vendors: ["8086"]}], numVFs: 2}]\n'
FROZEN = "/srv/frozen"
SCRIPT = f"""
import anyio
from pathlib import Path
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.standin import Kubelet
async def main():
    host = SimulatedHost(Path('{NODE}'))
    gpu = dict(vendor='10de', device='1eb8', pci_class='030200', driver='vfio-pci', group=1)
    host.add_function('0000:10:00.0', **gpu)
    card = dict(vendor='8086', device='1572', pci_class='020000', driver='i40e', group=60, sriov=4)
    host.add_function('0000:60:00.0', **card)
    async with Kubelet('{NODE}'):
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


def test_a_service_that_is_killed_while_a_write_sleeps_is_started_anew(
    installed: Machine, packages: Packages, tmp_path: Path
) -> None:
    installed.run(f"dpkg -i {installed.put(packages.demo_deb)} && mkdir -p {NODE}")
    installed.write(f"{DROP_IN}/node.conf", f"{ON_THE_NODE}ReadWritePaths=-{FROZEN}\nWatchdogSec=6s\n")
    kubelet(installed, SCRIPT)
    with hanging(installed, NUMBER, tmp_path / "frozen.img"):
        installed.write(f"{NODE}/etc/nodeagent/config.yaml", RULE)
        installed.run("systemctl daemon-reload && systemctl restart nodeagent")
        installed.until_active()
        first = installed.show("MainPID")
        until(lambda: "D" in installed.says(f"ps -L -o stat= -p {first}"), "its write sleeps")
        installed.run(f"kill -KILL {first}")
        until(lambda: installed.show("MainPID") not in (first, "0"), "another is started", 60)
        installed.until_active()
        assert "D" in installed.says(f"ps -L -o stat= -p {first}"), "the first sleeps on"
        registered = "registered with the kubelet"
        until(lambda: installed.journal().count(registered) == 2, "the kubelet knows the new one")
        assert f"pid {installed.show('MainPID')}" in installed.says(f"nodeagent --root {NODE} status")
        until(lambda: health_at(installed, "127.0.0.1:9481") == "200", "its health is served")
