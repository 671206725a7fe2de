# SPDX-License-Identifier: Apache-2.0
"""The stand-in kubelet as a program: one JSON object per line in, one per line out.

``{"cmd": "admit", "namespace": …, "name": …, "containers": [{"example.com/gpu": 1}]}`` and so on; each answer
has ``ok`` and either the result or ``error``. The end of the input ends the program. See ``COMMANDS`` below.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread

from nodeagent.sim.kubelet.standin import Kubelet
from nodeagent.sim.kubelet.state import Pod

Arguments = dict[str, Any]


async def answer(kubelet: Kubelet, line: str) -> dict[str, Any]:
    """The answer to one line; errors are answers too."""
    try:
        arguments = json.loads(line)
        result = await COMMANDS[arguments.pop("cmd")](kubelet, arguments)
    except Exception as error:  # noqa: BLE001 - whatever it was, the other side must be told
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return {"ok": True, "result": result}


async def _start(kubelet: Kubelet, _: Arguments) -> None:
    await kubelet.start()


async def _stop(kubelet: Kubelet, _: Arguments) -> None:
    await kubelet.stop()


async def _restart(kubelet: Kubelet, arguments: Arguments) -> None:
    await kubelet.restart(**arguments)


async def _admit(kubelet: Kubelet, arguments: Arguments) -> Any:
    return dataclasses.asdict(await kubelet.admit(Pod(**arguments)))


async def _delete(kubelet: Kubelet, arguments: Arguments) -> None:
    kubelet.delete(Pod(containers=[], **arguments))


async def _fault(kubelet: Kubelet, arguments: Arguments) -> None:
    kubelet.faults.set(arguments["name"], arguments.get("setting", True))


async def _clear(kubelet: Kubelet, arguments: Arguments) -> None:
    kubelet.faults.clear(arguments["name"])


async def _end_stream(kubelet: Kubelet, arguments: Arguments) -> None:
    kubelet.end_stream(arguments["resource"])


async def _wait(kubelet: Kubelet, arguments: Arguments) -> None:
    """Until ``resources`` resources have an open stream and a list; ``timeout`` seconds."""
    streams, devices = kubelet.statistics.streams, kubelet.state.table.devices
    await kubelet.until(
        lambda: sum(1 for name in devices if streams.get(name) == 1) >= arguments["resources"],
        arguments.get("timeout", 10.0),
    )


async def _state(kubelet: Kubelet, _: Arguments) -> Any:
    statistics = kubelet.statistics
    return {
        "running": kubelet.life.running,
        "crashed": kubelet.life.crashed,
        "resources": {name: kubelet.capacity(name) for name in sorted(kubelet.state.table.healthy)},
        "streams": statistics.streams,
        "registrations": [dataclasses.asdict(entry) for entry in statistics.registrations],
        "lists": {name: [seen.when for seen in lists] for name, lists in statistics.lists.items()},
        "allocations": [dataclasses.asdict(entry) for entry in statistics.allocations],
        "pods": {key: pod.phase for key, pod in kubelet.state.pods.items()},
    }


COMMANDS: dict[str, Callable[[Kubelet, Arguments], Awaitable[Any]]] = {
    "start": _start,
    "stop": _stop,
    "restart": _restart,
    "admit": _admit,
    "delete": _delete,
    "fault": _fault,
    "clear": _clear,
    "end-stream": _end_stream,
    "wait": _wait,
    "state": _state,
}


async def run(root: str, topology_policy: str) -> None:
    """Serve until the input ends."""
    async with Kubelet(root, topology_policy=topology_policy) as kubelet:
        _say({"ok": True, "result": "started"})
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            _say(await answer(kubelet, line))


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """The program; 0 when the input has ended."""
    parser = argparse.ArgumentParser(prog="nodeagent.sim.kubelet.standin", description="A stand-in kubelet")
    parser.add_argument("--root", required=True, help="prefix of var/lib/kubelet")
    parser.add_argument("--topology-policy", default="none", help="the kubelet's topology policy")
    chosen = parser.parse_args(arguments)
    anyio.run(run, chosen.root, chosen.topology_policy)
    return 0
