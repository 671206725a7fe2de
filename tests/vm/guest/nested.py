# SPDX-License-Identifier: Apache-2.0
"""A virtual machine inside the guest, which has a device as KubeVirt would give it."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import Process

_QEMU = (
    *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg"),
    *("-machine", "q35", "-m", "64", "-S", "-monitor", "stdio"),
)
_AS_QEMU = ("setpriv", "--reuid=107", "--regid=107", "--clear-groups")  # whose virt-launcher's QEMU is


@asynccontextmanager
async def machine(address: str) -> AsyncIterator[None]:
    """One that runs, and has the function on its bus, until the end of the block."""
    command = [*_QEMU, "-device", f"vfio-pci,host={address},rombar=0"]
    async with _running(command, b"info pci\n", b"PCI device 8086:10d3"):  # the card is an Intel 82574
        yield


@asynccontextmanager
async def with_usb(node: Path) -> AsyncIterator[None]:
    """One of virt-launcher's user that has the USB device of this node, until the end of the block."""
    command = [*_AS_QEMU, *_QEMU, "-device", "qemu-xhci", "-device", f"usb-host,hostdevice={node}"]
    async with _running(command, b"info usb\n", b"Product QEMU USB HARDDRIVE"):
        yield


@asynccontextmanager
async def _running(command: Sequence[str], question: bytes, answer: bytes) -> AsyncIterator[None]:
    async with await anyio.open_process(command, stderr=subprocess.STDOUT) as process:
        try:
            await _shows_device(process, question, answer)
            yield
        finally:
            process.terminate()


async def _shows_device(process: Process, question: bytes, answer: bytes) -> None:
    """Ask the machine's monitor what is on its bus."""
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.send(question)
    said = b""
    while answer not in said:
        try:
            said += await process.stdout.receive()
        except anyio.EndOfStream:
            raise AssertionError(said.decode(errors="replace")) from None
