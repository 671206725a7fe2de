# SPDX-License-Identifier: Apache-2.0
"""What USB costs a node without a rule for it: no code, no read, no watch."""

from __future__ import annotations

import os

import pytest

from nodeagent.sim import files
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.harness import T4, Node, watched
from tests.sim.usb import STICK

RULE = 'resources:\n  - {name: example.com/stick, usb: [{vendors: ["46f4"]}]}\n'
ONLY_FOR_USB = {
    "nodeagent.kernel.apply.usb_owner",
    "nodeagent.policy.offer.usb_sets",
    "nodeagent.agent.usb",
}
AT_END = """
import atexit, sys

def tell():
    with open({path!r}, "w") as file:
        file.write("\\n".join(sys.modules))

atexit.register(tell)
import os
real = os._exit
os._exit = lambda code: (tell(), real(code))
opened = open({reads!r}, "a", buffering=1)

def heard(name, found):
    if name in ("open", "os.listdir") and "bus/usb" in str(found[0]):
        opened.write(str(found[0]) + "\\n")

sys.addaudithook(heard)
"""


@pytest.mark.parametrize("wished", [False, True])
async def test_without_a_rule_nothing_of_usb_is_loaded_read_or_watched(
    node: Node, tmp_path_factory: pytest.TempPathFactory, wished: bool
) -> None:
    site = tmp_path_factory.mktemp("site")
    modules, reads = site / "modules", site / "reads"
    reads.touch()
    (site / "sitecustomize.py").write_text(AT_END.format(path=str(modules), reads=str(reads)))
    node.add_gpus(1)
    node.usb.plug("1-1", STICK)
    if wished:
        node.configure(RULE)
        files.directory(node.host.path("/proc/4711/fd"))  # all processes are seen
    paths = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    async with node.kubelet() as kubelet, node.daemon(environ={"PYTHONPATH": paths}) as daemon:
        await kubelet.until_listed(T4, 1)
        if wished:
            await kubelet.until_listed("example.com/stick", 1)
            pod = Pod("default", "vm", [{"example.com/stick": 1}])
            await kubelet.admit(pod)  # all that lends is loaded by then, whether it may be lent or not
        node.usb.plug("1-2", STICK)
        inodes = watched(daemon)
        usb = {os.stat(node.host.path(path)).st_ino for path in ("/sys/bus/usb/devices", "/dev/bus")}
        assert bool(inodes & usb) is wished
        assert await daemon.end() == 0
    loaded = set(modules.read_text().split())
    assert (loaded & ONLY_FOR_USB) == (ONLY_FOR_USB if wished else set())
    assert bool(reads.read_text()) is wished, reads.read_text()
