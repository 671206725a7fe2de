# SPDX-License-Identifier: Apache-2.0
"""The unit on booted systems: what its sandbox lets through, and that the daemon's work gets done in it.

Devices are a made-up tree below /srv/node: the real bus in a container is that of the machine.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.facts import names
from tests.packaging.building import Packages
from tests.packaging.machine import Machine, until

NODE = "/srv/node"
REPORTS = "/srv/reports"
DROP_IN = "/etc/systemd/system/nodeagent.service.d"
LOOK = Path(__file__).with_name("look.py")
SIMULATION = Path(__file__).parents[1] / "sim"
METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"
KUBEVIRT, USB = METRICS.with_name("kubevirt.md"), METRICS.with_name("usb.md")
FOLLOWING = re.compile(r"^```\n# \S+/cluster.conf\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INI = re.compile(r"^```ini\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ON_THE_NODE = f"""[Service]
ExecStart=
ExecStart=/usr/bin/nodeagent --root {NODE} run
ReadWritePaths={NODE}
"""
PASSTHROUGH = f"""
import anyio
from nodeagent.sim import nodes
from nodeagent.sim.kubelet.server import FakeKubelet
async def main():
    nodes.demo_node('{NODE}')
    async with FakeKubelet('{NODE}'):
        await anyio.sleep_forever()
anyio.run(main)
"""
DRA = f"""
from pathlib import Path
import anyio
from nodeagent.sim import nodes
from nodeagent.sim.kubelet.server import FakeKubelet
async def main():
    nodes.demo_node('{NODE}')
    async with FakeKubelet('{NODE}') as kubelet:
        while True:
            Path('/srv/new').write_text(str(kubelet.statistics.health_reports))
            Path('/srv/new').rename('{REPORTS}')
            await anyio.sleep(0.1)
anyio.run(main)
"""
ALONE = """
import anyio
from nodeagent.sim.kubelet.server import FakeKubelet
async def main():
    async with FakeKubelet('/'):
        await anyio.sleep_forever()
anyio.run(main)
"""
CLUSTER = """
import os
from pathlib import Path
import anyio
from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import NODES
from nodeagent.sim.kubelet.server import FakeKubelet
async def main():
    async with FakeApiServer() as server:
        server.store.put(NODES, {'metadata': {'name': os.uname().nodename}})
        server.kubeconfig(Path('/etc/nodeagent/kubeconfig'))
        async with FakeKubelet('/'):
            await anyio.sleep_forever()
anyio.run(main)
"""
CARDS = f"""
import anyio
from nodeagent.sim import nodes
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.mdev import MdevKernel, simulated_cards
async def main():
    host = nodes.vgpu_node('{NODE}')
    async with simulated_cards(host, MdevKernel(nodes.vgpu_cards())), FakeKubelet('{NODE}'):
        await anyio.sleep_forever()
anyio.run(main)
"""

STICKS = f"""
import anyio
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from nodeagent.sim.host import SimulatedHost
from simulated_usb import STICK, UsbBuses
async def main():
    usb = UsbBuses(SimulatedHost('{NODE}').tree)
    for port in (1, 2):
        usb.plug(f'1-{{port}}', STICK, port)
    async with FakeKubelet('{NODE}') as kubelet:
        for life in (1, 2):
            lives = kubelet.statistics.accepted
            await kubelet.until(lambda: len(lives('example.com/stick')) == life, 60.0)
            await kubelet.until(lambda: kubelet.capacity('example.com/stick') == (2, 2), 60.0)
            await kubelet.admit(Pod('ns', f'vm-{{life}}', [{{'example.com/stick': 1}}]))
        await anyio.sleep_forever()
anyio.run(main)
"""

DRIVERS = f"""
import anyio
from pathlib import Path
from simulated_drivers import simulated
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
async def main():
    host = SimulatedHost(Path('{NODE}'))
    both = ['0000:3b:00.0', '0000:3b:00.1']
    for each in both:
        host.add_function(each, vendor='8086', device='10d3', pci_class='020000', driver='e1000e', group=1)
    async with simulated(host, *both), FakeKubelet('{NODE}'):
        await anyio.sleep_forever()
anyio.run(main)
"""


def kubelet(machine: Machine, script: str, root: str = NODE) -> None:
    """Run a script with the code of the packages as the service ``kubelet``, until its socket is there."""
    machine.write("/srv/kubelet.py", script)
    for name in ("drivers", "usb"):  # they need the modules of the packages alone
        machine.write(f"/srv/simulated_{name}.py", (SIMULATION / f"{name}.py").read_bytes())
    code = machine.says("echo /usr/lib/nodeagent/*")
    unit = f"[Service]\nEnvironment=PYTHONPATH={code}\nExecStart=/usr/bin/python3 /srv/kubelet.py\n"
    machine.write("/etc/systemd/system/kubelet.service", unit)
    machine.run("systemctl daemon-reload && systemctl restart kubelet")
    socket = f"{root}/var/lib/kubelet/device-plugins/kubelet.sock"
    until(lambda: not machine.run(f"test -S {socket}", check=False).returncode, "the kubelet is there")


@pytest.fixture
def node(installed: Machine, packages: Packages) -> Machine:
    """The daemon serves a made-up node, on which there is nothing yet."""
    installed.run(f"dpkg -i {installed.put(packages.demo_deb)} && mkdir -p {NODE}")
    installed.write(f"{DROP_IN}/node.conf", ON_THE_NODE)
    return installed


def restart(machine: Machine) -> None:
    """Start the service anew with its drop-ins."""
    machine.run("systemctl daemon-reload && systemctl restart nodeagent")


def test_systemd_finds_nothing_wrong_with_the_unit(shared: Machine) -> None:
    done = shared.run("systemd-analyze verify --man=no nodeagent.service")
    assert "nodeagent.service" not in done.stderr
    shared.run("systemd-analyze security --offline=yes --threshold=20 nodeagent.service")


def test_the_sandbox_lets_through_what_the_daemon_needs_and_nothing_else(
    empty: Machine, packages: Packages
) -> None:
    empty.write("/usr/local/lib/look.py", LOOK.read_bytes())
    empty.write(f"{DROP_IN}/look.conf", "[Service]\nExecStartPost=/usr/bin/python3 /usr/local/lib/look.py\n")
    empty.run("systemd-run --quiet --unit=other --uid=nobody sleep infinity")
    empty.run(f"dpkg -i {empty.put(packages.deb)}")
    empty.until_active()
    seen: dict[str, Any] = json.loads(
        next(line for line in empty.journal().splitlines() if line.startswith("{"))
    )
    assert seen.pop("capabilities") == 1 << 19 | 1 << 2, "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
    assert seen.pop("processes without a view") == []
    assert {name for name, possible in seen.items() if possible} == {
        *("write /var/lib/kubelet", "write /run/cdi", "write /run/nodeagent"),
        *("a socket of AF_UNIX", "a socket of AF_NETLINK"),
    }


ASKED = "journalctl --sync; journalctl -q NODEAGENT_EVENT=request-accepted"
REGISTERED = "NODEAGENT_EVENT=resource-registered"
REFUSED, FAILED = "NODEAGENT_EVENT=http-refused", "NODEAGENT_EVENT=subsystem-failed"
HEALTH = "python3 -c 'import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:9481/healthz\").status)'"


def test_health_is_served_on_the_socket_that_systemd_makes_for_as_long_as_the_service_runs(
    installed: Machine,
) -> None:
    until(lambda: installed.run(HEALTH, check=False).stdout.strip() == "200", "health is served")
    for _ in range(8):  # systemd starts a unit five times in ten seconds if it is not told otherwise
        installed.run("systemctl restart nodeagent")
        until(lambda: installed.run(HEALTH, check=False).stdout.strip() == "200", "health is served again")
    installed.run("systemctl stop nodeagent")
    assert installed.run(HEALTH, check=False).returncode != 0
    assert installed.show("ActiveState") == "inactive", "nobody who asks starts it"


def health_at(machine: Machine, address: str) -> str:
    """The status of /healthz there, "" if nobody answers."""
    asked = f"r.urlopen('http://{address}/healthz', timeout=5).status"
    return machine.says(f'python3 -c "import urllib.request as r; print({asked})"')


def test_an_address_that_the_sandbox_forbids_moves_health_only_when_the_drop_in_of_the_page_is_there(
    installed: Machine,
) -> None:
    everywhere = "http: {listen: '0.0.0.0:9481'}\n"
    installed.write("/etc/nodeagent/conf.d/http.yaml", everywhere)
    until(lambda: "http://127.0.0.1:9481/" in installed.journal(REFUSED), "the journal says so")
    assert health_at(installed, "127.0.0.1:9481") == "200", "it goes on where it was"
    names(installed.journal(), "nodeagent-http.socket", "ListenStream=")
    (drop_in,) = INI.findall(METRICS.read_text())
    installed.write("/etc/systemd/system/nodeagent-http.socket.d/override.conf", drop_in)
    restart(installed)
    until(lambda: health_at(installed, "127.0.0.2:9481") == "200", "it is served at every address")
    allowed = installed.show("IPAddressAllow", "nodeagent-http.socket")
    assert "10.0.0.0/8" in allowed
    assert "127.0.0.0/8" in allowed, "who is on the node may come as before"
    denied = installed.show("IPAddressDeny", "nodeagent-http.socket").split()
    assert sorted(denied) == ["0.0.0.0/0", "::/0"], "systemd tells them in any order"


def test_a_sandboxed_daemon_fills_cards_with_vgpus_and_changes_its_mind(node: Machine) -> None:
    def made(kind: str) -> int:
        return len(node.says(f"grep -l '{kind}' {NODE}/sys/bus/mdev/devices/*/mdev_type/name").split())

    kubelet(node, CARDS)
    node.write(f"{NODE}/etc/nodeagent/config.yaml", "mdevs: {manage: true, types: [nvidia-228]}\n")
    restart(node)
    until(lambda: made("T4-8A") == 6, "all three cards are full")
    node.write(f"{NODE}/etc/nodeagent/config.yaml", "mdevs: {manage: true, types: [nvidia-234]}\n")
    until(lambda: (made("T4-8A"), made("T4-16Q")) == (0, 3), "all three cards have another type")


def test_a_newcomer_finds_in_the_journal_why_a_gpu_is_not_offered_and_offers_another_name(
    node: Machine,
) -> None:
    kubelet(node, PASSTHROUGH)
    restart(node)
    assert "0000:d8:01.0 (e1000e)" in node.journal("NODEAGENT_EVENT=device-unhealthy")
    rule = 'resources: [{name: example.com/gpu, pci: [{vendors: ["10de"], devices: ["1f08"]}]}]\n'
    node.write(f"{NODE}/etc/nodeagent/config.yaml", rule)
    until(lambda: "example.com/gpu" in node.says(f"nodeagent --root {NODE} status"), "the resource is served")
    until(lambda: "example.com/gpu" in node.journal(REGISTERED), "the kubelet knows it")


def test_the_sockets_of_dra_stay_open_while_the_service_restarts(node: Machine) -> None:
    """Calls of the kubelet wait in them; when the service is stopped, systemd closes them."""

    def count_reports() -> int:
        return int(node.says(f"cat {REPORTS}") or 0)

    def count_registrations() -> int:
        return len(node.journal("-q", "NODEAGENT_EVENT=dra-registered").splitlines())

    directory = f"{NODE}/var/lib/kubelet"
    inodes = f"stat -c %i {directory}/plugins/nodeagent.local/dra.sock {directory}/plugins_registry/*.sock"
    kubelet(node, DRA)
    selector = '{vendors: ["10de"], devices: ["1f08"]}'
    rule = f"resources: [{{name: example.com/gpu, pci: [{selector}], via: dra}}]\n"
    node.write(f"{NODE}/etc/nodeagent/config.yaml", rule)
    restart(node)
    until(lambda: count_registrations() == 1, "the kubelet knows the driver")
    sockets = node.says(inodes)
    for command in ("systemctl restart nodeagent", "systemctl kill --signal=KILL nodeagent"):
        before = count_reports()
        node.run(command)
        until(partial(lambda count: count_reports() > count, before), "the kubelet reads the health again")
        node.until_active()
    assert (node.says(inodes), count_registrations()) == (sockets, 1)
    node.run("systemctl stop nodeagent && systemctl start nodeagent")
    until(lambda: count_registrations() == 2, "the kubelet knows the driver of the started service")
    assert node.says(inodes) != sockets


def test_the_journal_has_fields_to_search_by_and_explains_what_it_says(node: Machine) -> None:
    kubelet(node, PASSTHROUGH)
    restart(node)
    wanted = "NODEAGENT_EVENT=device-unhealthy NODEAGENT_DEVICE=0000:d8:00.0"
    until(lambda: bool(node.says(f"journalctl --sync; journalctl -q -o cat {wanted}")), "it is told")
    record = json.loads(node.says(f"journalctl -q -o json -n 1 {wanted}"))
    assert record["NODEAGENT_REASON"] == "group-not-viable"
    assert record["NODEAGENT_GROUP"] == "14"
    assert record["_SYSTEMD_UNIT"] == "nodeagent.service"
    assert "nodeagent explain 0000:d8:00.0" in node.says(f"journalctl -q -x {wanted}")


def test_a_sandboxed_daemon_binds_what_root_asks_for_by_hand_and_answers_nobody_else(node: Machine) -> None:
    def driver(address: str) -> str:
        return node.says(f"basename $(readlink {NODE}/sys/bus/pci/devices/{address}/driver)")

    kubelet(node, DRIVERS)
    restart(node)
    socket = f"{NODE}/run/nodeagent/status.sock"
    assert node.says(f"stat -c '%a %U' {socket}") == "600 root"
    verb = f"nodeagent --root {NODE} bind 3b:00.0"
    refused = node.run(f"setpriv --reuid=65534 --regid=65534 --clear-groups {verb}", check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    names(refused.stderr, "root", socket)
    said = node.run(verb)
    names(said.stdout, "done: ", "0000:3b:00.0", "0000:3b:00.1", "vfio-pci")
    assert said.stderr == "", "the daemon has done it"
    assert (driver("0000:3b:00.0"), driver("0000:3b:00.1")) == ("vfio-pci", "vfio-pci")
    node.run("systemctl restart nodeagent")
    assert driver("0000:3b:00.1") == "vfio-pci"
    assert "done: " in node.run(f"nodeagent --root {NODE} release 3b:00.1").stdout
    assert (driver("0000:3b:00.0"), driver("0000:3b:00.1")) == ("e1000e", "e1000e")
    asked = [json.loads(each) for each in node.says(f"{ASKED} -o json").splitlines()]
    assert [each["NODEAGENT_OPERATION"] for each in asked] == ["bind", "release"]
    assert all(int(each["NODEAGENT_PROCESS"]) for each in asked), (
        "the service is in the PID namespace of the host"
    )


def test_the_executable_serves_a_host_without_python(empty: Machine, binary: Path) -> None:
    there = "/opt/nodeagent"
    empty.run(f"mkdir {there} && tar xzf {empty.put(binary)} -C {there} --strip-components=1")
    empty.run("cp /opt/nodeagent/nodeagent.service /etc/systemd/system")
    empty.run(
        "cp /opt/nodeagent/tmpfiles.conf /usr/lib/tmpfiles.d/nodeagent.conf && systemd-tmpfiles --create"
    )
    empty.run("ln -s /opt/nodeagent/nodeagent /usr/bin/nodeagent && rm /usr/bin/python3*")
    empty.run("systemctl daemon-reload && systemctl start nodeagent")
    empty.write("/etc/nodeagent/conf.d/vgpus.yaml", "mdevs: {manage: true, types: [nvidia-222]}\n")
    until(lambda: "mdevs" in empty.journal("NODEAGENT_EVENT=config-reloaded"), "the feature is wanted")
    assert "pid " + empty.show("MainPID") in empty.says("nodeagent status")
    assert empty.journal("-q", FAILED) == ""


def test_a_node_that_is_reset_is_served_again_without_a_restart(
    installed: Machine, packages: Packages
) -> None:
    def registrations() -> int:
        return installed.journal(REGISTERED).count("example.com/null")

    installed.run(f"dpkg -i {installed.put(packages.demo_deb)}")
    rule = "resources: [{name: example.com/null, node: {path: /dev/null, count: 3}}]\n"
    installed.write("/etc/nodeagent/conf.d/null.yaml", rule)
    kubelet(installed, ALONE, "")
    until(lambda: registrations() == 1, "the kubelet knows it")
    before = installed.show("MainPID")
    installed.run("systemctl stop kubelet")
    until(lambda: not installed.run("rm -rf /var/lib/kubelet/*", check=False).returncode, "all of it is gone")
    kubelet(installed, ALONE, "")
    until(lambda: registrations() == 2, "the new kubelet knows it")
    assert installed.show("MainPID") == before


def test_a_reload_in_the_middle_of_an_upgrade_never_mixes_two_versions(
    installed: Machine, newer: Packages
) -> None:
    before = installed.show("MainPID")
    installed.run(f"dpkg --unpack {installed.put(newer.deb)}")
    assert installed.show("MainPID") == before, "it serves on while the new version is unpacked"
    installed.write("/etc/nodeagent/conf.d/vgpus.yaml", "mdevs: {manage: true, types: [nvidia-222]}\n")
    installed.run("systemctl reload nodeagent", check=False)  # the file alone may have been enough
    until(lambda: installed.show("NRestarts") == "1", "the old version has ended")
    installed.until_active()
    journal = installed.journal()
    assert "upgraded" in journal
    assert "nodeagent 99.0.0 started" in journal
    assert "Traceback" not in journal
    assert installed.journal("-q", FAILED) == ""
    installed.run("dpkg --configure nodeagent")
    installed.until_active()
    assert "mdevs.manage" in installed.says("nodeagent config")


def test_the_drop_in_of_the_page_lets_the_daemon_follow_the_cluster(
    installed: Machine, packages: Packages
) -> None:
    def told() -> dict[str, Any]:
        status: dict[str, Any] = json.loads(installed.says("nodeagent status -o json"))
        return dict(status.get("cluster", {}))

    installed.run(f"dpkg -i {installed.put(packages.demo_deb)}")
    kubelet(installed, CLUSTER, "")
    installed.write("/etc/nodeagent/conf.d/cluster.yaml", "kubeconfig: /etc/nodeagent/kubeconfig\n")
    error = until(lambda: told().get("error"), "the sandbox keeps it from the API server")
    assert "Address family not supported" in error
    names(told()["hint"], "API server", "kubevirt.md", "systemd")
    (drop_in,) = FOLLOWING.findall(KUBEVIRT.read_text())
    installed.write(f"{DROP_IN}/cluster.conf", drop_in)
    restart(installed)
    assert until(lambda: told().get("reachable"), "the API server is heard")
    record = "/var/lib/nodeagent/last.json"
    saved = f"grep -q cluster {record}"
    until(lambda: installed.run(saved, check=False).returncode == 0, "it is on disk")
    assert installed.says(f"stat -c %a {record}") == "600"
    installed.run("systemd-analyze verify --man=no nodeagent.service")


def test_the_drop_in_of_the_page_lets_the_daemon_lend_usb_nodes(node: Machine) -> None:
    def owners(path: str) -> list[str]:
        return sorted(node.says(f"stat -c %u:%g {path}").split())

    def may() -> str:
        lines = json.loads(node.says(f"nodeagent --root {NODE} check -o json"))["lines"]
        return str({line["check"]: line for line in lines}["USB nodes"]["verdict"])

    usb, here = f"{NODE}/dev/bus/usb/001/*", "/dev/bus/usb/001/004"
    kubelet(node, STICKS)
    node.run(f"mkdir -p $(dirname {here}) && touch {here}")
    rule = '{name: example.com/stick, usb: [{vendors: ["46f4"]}]}'
    node.write(f"{NODE}/etc/nodeagent/config.yaml", f"resources: [{rule}]\n")
    node.write(f"{DROP_IN}/try.conf", f"[Service]\nExecStartPost=-/usr/bin/chown 107:107 {here}\n")
    restart(node)
    until(lambda: "46f4:0001" in node.journal("NODEAGENT_EVENT=allocated"), "a pod has one")
    assert (owners(usb), owners(here), may()) == (["0:0", "0:0"], ["0:0"], "wrong")
    (drop_in,) = INI.findall(USB.read_text())
    node.write(f"{DROP_IN}/usb.conf", drop_in)
    restart(node)
    until(lambda: owners(usb) == ["0:0", "107:107"], "the other is lent to QEMU")
    assert (owners(here), may()) == (["107:107"], "ok")
    node.run("systemd-analyze verify --man=no nodeagent.service")
