# SPDX-License-Identifier: Apache-2.0
"""A virtual machine inside the guest, which has a function as KubeVirt would give it."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import Process

_QEMU = (
    *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg"),
    *("-machine", "q35", "-m", "64", "-S", "-monitor", "stdio"),
)


@asynccontextmanager
async def machine(address: str) -> AsyncIterator[None]:
    """One that runs, and has the function on its bus, until the end of the block."""
    command = [*_QEMU, "-device", f"vfio-pci,host={address},rombar=0"]
    async with await anyio.open_process(command, stderr=subprocess.STDOUT) as process:
        try:
            await _shows_device(process)
            yield
        finally:
            process.terminate()


async def _shows_device(process: Process) -> None:
    """Ask the machine's monitor what is on its bus; the card is an Intel 82574."""
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.send(b"info pci\n")
    said = b""
    while b"PCI device 8086:10d3" not in said:
        try:
            said += await process.stdout.receive()
        except anyio.EndOfStream:
            raise AssertionError(said.decode(errors="replace")) from None
