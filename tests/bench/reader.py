# SPDX-License-Identifier: Apache-2.0
"""A kubelet made of grpcio (C-core) that registers plugins and reads lists, as a program: little of its own.

``python -m tests.bench.reader DIRECTORY RESOURCES``. A line ``start`` on standard input is one start of the
kubelet: the sockets in the directory go, its own comes, and when that many resources have sent a list it
prints a JSON list: for each the milliseconds since its own socket listened, and the bytes. ``stop`` ends all
connections, and is answered by an empty line. Lists are not decoded. As the real one does, it dials back
inside Register, asks for the options first, and writes its checkpoint at each list.
"""

from __future__ import annotations

import json
import stat
import sys
import threading
import time
from collections.abc import Iterable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from nodeagent.kubelet.api.deviceplugin import v1beta1

SERVICE = "/v1beta1.DevicePlugin"
HEALTHY = b"Healthy"
CHECKPOINT = "kubelet_internal_checkpoint"
PATIENCE = 60.0  # seconds for all lists


class Kubelet:
    """One life."""

    def __init__(self, directory: str, resources: int) -> None:
        self._directory = Path(directory)
        self._resources = resources
        self._lists: dict[str, tuple[float, bytes]] = {}
        self._registered: dict[str, bytes] = {}
        self._channels: list[grpc.Channel] = []
        self._all = threading.Event()
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(resources))
        register = grpc.unary_unary_rpc_method_handler(self._register)
        service = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register})
        self._server.add_generic_rpc_handlers((service,))

    def start(self) -> list[tuple[float, int]]:
        """Listen, and wait for all lists: milliseconds and bytes of each."""
        for path in self._directory.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        began = time.monotonic()
        self._server.add_insecure_port(f"unix:{self._directory}/kubelet.sock")
        self._server.start()
        if not self._all.wait(PATIENCE):
            raise TimeoutError(f"{len(self._lists)} of {self._resources} resources have sent a list")
        return [((when - began) * 1e3, len(data)) for when, data in self._lists.values()]

    def stop(self) -> None:
        """End as a killed process does."""
        for channel in self._channels:
            channel.close()
        self._server.stop(0).wait()

    def _register(self, data: bytes, _: grpc.ServicerContext) -> bytes:
        request = v1beta1.RegisterRequest.parse(data)
        channel = grpc.insecure_channel(f"unix:{self._directory}/{request.endpoint}")
        self._channels.append(channel)
        channel.unary_unary(f"{SERVICE}/GetDevicePluginOptions")(b"")
        name = request.resource_name
        threading.Thread(target=self._read, args=(name, channel), daemon=True).start()
        return b""

    def _read(self, resource: str, channel: grpc.Channel) -> None:
        lists: Any = channel.unary_stream(f"{SERVICE}/ListAndWatch")(b"")
        try:
            for data in lists:
                self._listed(resource, data)
        except (grpc.RpcError, ValueError):  # the stream has ended, or we have closed the channel
            return

    def _listed(self, resource: str, data: bytes) -> None:
        with self._lock:
            self._lists.setdefault(resource, (time.monotonic(), data))
            ids = b",".join(b'"%d"' % number for number in range(data.count(HEALTHY)))
            self._registered[resource] = b'"%s":[%s]' % (resource.encode(), ids)
            _write(self._directory, self._registered.values())
            if len(self._lists) == self._resources:
                self._all.set()


def _write(directory: Path, registered: Iterable[bytes]) -> None:
    """The checkpoint, with as many ids as the kubelet's has of nodes that are shared."""
    temporary = directory / ".1"
    data = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{%s}},"Checksum":1}' % b",".join(registered)
    temporary.write_bytes(data)
    temporary.replace(directory / CHECKPOINT)


def main() -> None:
    """Talk by standard input and output."""
    kubelet: Kubelet | None = None
    for line in sys.stdin:
        if line.strip() == "start":
            kubelet = Kubelet(sys.argv[1], int(sys.argv[2]))
            print(json.dumps(kubelet.start()), flush=True)
        elif kubelet is not None:
            kubelet.stop()
            print(flush=True)


if __name__ == "__main__":
    main()
