# SPDX-License-Identifier: Apache-2.0
"""A client of device plugins made of grpcio (C-core), as a program: its cost is not the daemon's.

Reads one line: JSON ``{"calls": [[socket, device id], …]}``. Connects to each socket, says ``ready``, waits
for one more line, makes one Allocate after the other, and prints the seconds of each as a JSON list.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import grpc

from nodeagent.kubelet.api.deviceplugin import v1beta1

SERVICE = "/v1beta1.DevicePlugin"


def main() -> None:
    """Talk by standard input and output."""
    calls: list[tuple[str, str]] = json.loads(sys.stdin.readline())["calls"]
    channels = {path: grpc.insecure_channel(f"unix:{path}") for path, _ in calls}
    for channel in channels.values():  # the kubelet has asked for these long before the first pod
        channel.unary_unary(f"{SERVICE}/GetDevicePluginOptions")(b"")
    planned = [(channels[path].unary_unary(f"{SERVICE}/Allocate"), _request(name)) for path, name in calls]
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps([_seconds(call, request) for call, request in planned]), flush=True)


def _request(device_id: str) -> bytes:
    return bytes(v1beta1.AllocateRequest([v1beta1.ContainerAllocateRequest(device_ids=[device_id])]))


def _seconds(call: Any, request: bytes) -> float:
    """Make one call; what it raises ends the program."""
    began = time.perf_counter()
    call(request, timeout=10)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
