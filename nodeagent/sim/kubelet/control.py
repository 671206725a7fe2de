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


class Control:
    """Runs commands on a Kubelet."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self.commands: dict[str, Callable[[Arguments], Awaitable[Any]]] = {
            "start": self._start,
            "stop": self._stop,
            "restart": self._restart,
            "admit": self._admit,
            "delete": self._delete,
            "fault": self._fault,
            "clear": self._clear,
            "end-stream": self._end_stream,
            "wait": self._wait,
            "state": self._state,
        }

    async def answer(self, line: str) -> dict[str, Any]:
        """The answer to one line; errors are answers too."""
        try:
            arguments = json.loads(line)
            result = await self.commands[arguments.pop("cmd")](arguments)
        except Exception as error:  # noqa: BLE001 - whatever it was, the other side must be told
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}
        return {"ok": True, "result": result}

    async def _start(self, _: Arguments) -> None:
        await self._kubelet.start()

    async def _stop(self, _: Arguments) -> None:
        await self._kubelet.stop()

    async def _restart(self, arguments: Arguments) -> None:
        await self._kubelet.restart(**arguments)

    async def _admit(self, arguments: Arguments) -> Any:
        return dataclasses.asdict(await self._kubelet.admit(Pod(**arguments)))

    async def _delete(self, arguments: Arguments) -> None:
        self._kubelet.delete(Pod(containers=[], **arguments))

    async def _fault(self, arguments: Arguments) -> None:
        self._kubelet.fault(arguments["name"], arguments.get("setting", True))

    async def _clear(self, arguments: Arguments) -> None:
        self._kubelet.clear(arguments["name"])

    async def _end_stream(self, arguments: Arguments) -> None:
        self._kubelet.end_stream(arguments["resource"])

    async def _wait(self, arguments: Arguments) -> None:
        """Until ``resources`` resources have an open stream and a list; ``timeout`` seconds."""
        streams = self._kubelet.statistics.streams
        wanted = arguments["resources"]
        await self._kubelet.until(
            lambda: sum(1 for name in self._listed() if streams.get(name) == 1) >= wanted,
            arguments.get("timeout", 10.0),
        )

    def _listed(self) -> list[str]:
        return sorted(self._kubelet.state.table.devices)

    async def _state(self, _: Arguments) -> Any:
        kubelet, statistics = self._kubelet, self._kubelet.statistics
        return {
            "running": kubelet.state.running,
            "crashed": kubelet.crashed,
            "resources": {name: kubelet.capacity(name) for name in sorted(kubelet.state.table.healthy)},
            "streams": statistics.streams,
            "registrations": [dataclasses.asdict(entry) for entry in statistics.registrations],
            "lists": {name: [seen.when for seen in lists] for name, lists in statistics.lists.items()},
            "allocations": [dataclasses.asdict(entry) for entry in statistics.allocations],
            "pods": {key: pod.phase for key, pod in kubelet.state.pods.items()},
        }


async def run(root: str, topology_policy: str) -> None:
    """Serve until the input ends."""
    async with Kubelet(root, topology_policy=topology_policy) as kubelet:
        control = Control(kubelet)
        _say({"ok": True, "result": "started"})
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            _say(await control.answer(line))


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
