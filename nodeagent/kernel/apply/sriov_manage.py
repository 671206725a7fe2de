# SPDX-License-Identifier: Apache-2.0
"""Runs NVIDIA's sriov-manage, the one way to VFs of its GPUs: their driver takes no ``sriov_numvfs``.

It takes the GPU from its driver, makes all VFs or removes them, and gives it back; what was set up on it for
MIG or for vGPUs of several sizes is lost (read from the tool; not seen on hardware). It refuses a GPU that is
open. It is never ended half-way, for then the GPU would have no driver: it may take as long as it likes, and
outlives a daemon that ends meanwhile. So what it says goes to memory of its own: a pipe that nobody reads any
more would end it at its next word.
"""

from __future__ import annotations

import os

from nodeagent.base import advice
from nodeagent.base.advice import Doing
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import chardevs, pci

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_HINT = (
    "run it by hand on the host to see more; it needs lspci, setpci, the module pci-pf-stub, and a GPU that "
    "is not open"
)


def run(root: Root, address: str, *, make: bool) -> None:
    """Make all VFs of a GPU, or remove them. Blocks until the tool has ended.

    :raises KernelRefused: if it cannot be run, or says that it failed; at once if MIG is set up on the GPU.
    """
    if _has_gpu_instances(root, address):
        raise KernelRefused(
            f"{pci.SRIOV_MANAGE} is not run: {address} has GPU instances of MIG, which it would take away",
            "remove them first if nobody needs them, or make the VFs by hand before MIG is set up",
            path=pci.SRIOV_MANAGE,
        )
    order = "-e" if make else "-d"
    try:
        code, said = _ended([root.path(pci.SRIOV_MANAGE), order, address])
    except OSError as error:
        what = f"{pci.SRIOV_MANAGE} cannot be run: {advice.words(error)}"
        raise KernelRefused(what, advice.on(error, Doing.RUN), path=pci.SRIOV_MANAGE) from error
    if code:
        last = said.strip().rpartition("\n")[2][:200]
        what = f"{pci.SRIOV_MANAGE} {order} {address} ended with {code}: {last or 'no word'}"
        raise KernelRefused(what, _HINT, path=pci.SRIOV_MANAGE)


def _ended(command: list[str]) -> tuple[int, str]:
    """The exit code of a command, and what it said. :raises OSError: if it cannot be run."""
    import subprocess  # rarely needed

    with os.fdopen(os.memfd_create("sriov-manage"), "w+b") as said:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
            start_new_session=True,  # Ctrl-C is meant for the daemon
            check=False,
        )
        said.seek(0)
        return done.returncode, said.read().decode(errors="replace")


def _has_gpu_instances(root: Root, address: str) -> bool:
    """True if the GPU is divided by MIG (NVIDIA, MIG User Guide: device nodes and capabilities)."""
    number = chardevs.minor(root, address)
    return any(name.startswith("gi") for name in root.names(f"{_CAPABILITIES}/gpu{number}/mig"))
