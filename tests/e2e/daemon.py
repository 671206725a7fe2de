# SPDX-License-Identifier: Apache-2.0
"""The daemon as a process of its own, on the simulated host, talking to the real kubelet."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nodeagent
from nodeagent.base import sockets
from tests.e2e import waiting
from tests.e2e.processes import Process

SOURCE = Path(nodeagent.__file__).parent


class Daemon:
    """``nodeagent --root HOST run``, started, stopped and started again."""

    def __init__(self, host: Path, log: Path) -> None:
        self.host = host
        self.log = log
        self.source = SOURCE
        self.environ: Mapping[str, str] = {}
        self.under: Sequence[str] = ()  # a command that becomes the daemon
        self._process: Process | None = None

    def configure(self, settings: Mapping[str, object]) -> None:
        """Write the configuration file; JSON is YAML. A running daemon takes it by itself."""
        path = self.host / "etc/nodeagent/config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"apiVersion": "nodeagent/v1", **settings}))

    def start(self) -> None:
        """Start it; returns when all resources are registered with the kubelet."""
        self.launch()
        self.await_registered()

    def launch(self) -> None:
        """Start it; returns at once."""
        argv = [
            *self.under,
            sys.executable,
            "-P",
            "-m",
            "nodeagent",
            "--root",
            str(self.host),
            "run",
            "--log-format",
            "json",
        ]
        self._process = Process(argv, self.log, {"PYTHONPATH": str(self.source.parent), **self.environ})

    def await_registered(self, seconds: float = 20.0) -> None:
        """Wait until each resource is registered."""
        waiting.until(self._registered, "the daemon has registered its resources", seconds)

    def _registered(self) -> bool:
        if not self.running:
            raise RuntimeError(f"the daemon has ended: {self._tail()}")
        try:
            resources = self.status()["resources"]
        except ValueError as error:  # ended in the middle of its answer
            raise OSError(str(error)) from error
        return bool(resources) and all(resource["registered"] for resource in resources)

    def status(self) -> Any:
        """What ``nodeagent status -o json`` shows."""
        return sockets.ask(str(self.host / "run/nodeagent/status.sock"), "/status", 5.0)

    def device(self, device_id: str) -> Any:
        """The status of one device, or None."""
        found = (each for resource in self.status()["resources"] for each in resource["devices"])
        return next((device for device in found if device["id"] == device_id), None)

    @property
    def running(self) -> bool:
        """True while it lives."""
        return self._process is not None and self._process.running

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self._process is not None:
            self._process.send(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        """Stop it; its exit code."""
        if self._process is None:
            return None
        code = self._process.stop(number)
        self._process = None
        return code

    def upgrade(self, directory: Path, version: str) -> None:
        """From the next start on run another version: a copy of the package elsewhere."""
        self.source = directory / "nodeagent"
        shutil.copytree(SOURCE, self.source, ignore=shutil.ignore_patterns("__pycache__"))
        (self.source / "__init__.py").write_text(
            (SOURCE / "__init__.py").read_text().replace(nodeagent.__version__, version)
        )

    def events(self, name: str) -> list[Any]:
        """The events of that name in its log."""
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("event") == name]

    def _tail(self) -> str:
        return self._process.tail() if self._process else "it was not started"
