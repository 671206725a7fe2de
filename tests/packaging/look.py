# SPDX-License-Identifier: Apache-2.0
"""Runs in the sandbox of the service, as a process beside the daemon: what is possible there, as JSON.

Nothing is written: whether it could be is asked for. Needs nothing but Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
from pathlib import Path

PLACES = (
    "/etc",
    "/usr",
    "/var/lib",
    "/root",
    "/var/lib/kubelet",
    "/run",
    "/run/cdi",
    "/run/nodeagent",
    "/proc/sys",
)
FAMILIES = ("AF_UNIX", "AF_NETLINK", "AF_INET", "AF_PACKET", "AF_VSOCK")
NEW_NAMESPACE = 0x00020000  # CLONE_NEWNS in linux/sched.h


def capabilities() -> int:
    """The effective ones, as bits."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("CapEff")), 16)


def hidden() -> list[str]:
    """Processes whose open files are not to be seen."""
    return [name for name in os.listdir("/proc") if name.isdecimal() and not seen(name)]


def seen(process: str) -> bool:
    """Whether the open files of a process are to be seen; one that has ended has none."""
    try:
        os.listdir(f"/proc/{process}/fd")
    except PermissionError:
        return False
    except FileNotFoundError:
        return True
    return True


def opens(family: str) -> bool:
    """Whether a socket of that family can be had."""
    try:
        socket.socket(
            getattr(socket, family), socket.SOCK_RAW if family == "AF_NETLINK" else socket.SOCK_DGRAM
        ).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Look, and say it."""
    answers: dict[str, object] = {f"write {place}": os.access(place, os.W_OK) for place in PLACES}
    answers |= {f"a socket of {family}": opens(family) for family in FAMILIES}
    answers["a mount namespace"] = ctypes.CDLL(None).unshare(NEW_NAMESPACE) == 0
    answers["load a module"] = os.access("/proc/sys/kernel/modprobe", os.W_OK)
    answers["capabilities"] = capabilities()
    answers["processes without a view"] = hidden()
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
