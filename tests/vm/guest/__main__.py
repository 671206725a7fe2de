# SPDX-License-Identifier: Apache-2.0
"""The program of the guest: sets the node up, runs all scenarios, leaves one JSON file for each.

A scenario that fails does not hinder the next: what it left behind is mended, for a fresh daemon.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

import anyio
import anyio.to_thread

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.vm.guest import pci, scenarios
from tests.vm.guest.monitor import Monitor
from tests.vm.guest.node import Node
from tests.vm.guest.scenarios import Scenario

_RECEIVE_LIMIT = Path("/proc/sys/net/core/rmem_max")
_LONGEST = 240.0  # seconds for one scenario, on a machine that others load


async def _main(results: Path) -> None:
    _prepare()
    only = os.environ.get("NODEAGENT_VM_ONLY", "").split()
    async with FakeKubelet("/") as kubelet:
        node = Node(kubelet, Monitor(), results / "daemon.log")
        node.configure()
        for address in node.offered:
            pci.bind(address, pci.VFIO)
        pci.modprobe("-a", "e1000e", "nvme")  # after binding: a host driver takes longer to start
        for scenario in scenarios.ALL:
            if not only or scenario.name in only:
                _leave(results, scenario, await _outcome(node, scenario))
        await node.stop_daemon()


def _prepare() -> None:
    pci.modprobe("vfio-pci")
    _RECEIVE_LIMIT.write_text("212992")  # the default up to 6.12; that of 7.2 takes every burst


async def _outcome(node: Node, scenario: Scenario) -> dict[str, object]:
    began = time.monotonic()
    print(f"{scenario.name} …", flush=True)
    failure = None
    try:
        with anyio.fail_after(_LONGEST):
            await node.run_daemon(scenario.mode)
            await node.reset()
            await scenario.run(node)
    except Exception:  # noqa: BLE001 - whatever it was, it is this scenario's result
        failure = traceback.format_exc()
        node.mode = None  # the next one gets a fresh daemon
    seconds = time.monotonic() - began
    print(f"  {'failed' if failure else 'passed'} after {seconds:.1f} s", flush=True)
    return {"failure": failure, "seconds": round(seconds, 1)}


def _leave(results: Path, scenario: Scenario, outcome: dict[str, object]) -> None:
    if outcome["failure"]:
        print(outcome["failure"], flush=True)
    (results / f"{scenario.name}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    anyio.run(_main, Path(sys.argv[1]))
