# SPDX-License-Identifier: Apache-2.0
"""How many VFs a function has, and whether drivers of the host are asked about new ones.

``sriov_drivers_autoprobe`` counts where the kernel makes a VF, and wherever a driver is looked for later,
but for a VF with a ``driver_override`` (pci_device_can_probe in drivers/pci/pci-driver.c). So it stays off
until no rule asks for that: a driver that is loaded meanwhile, as udev does for new VFs, gets none.

NVIDIA's sriov-manage is the one way to VFs of its GPUs: their driver takes no ``sriov_numvfs``. It takes the
GPU from its driver, makes all VFs or removes them, and gives it back; what was set up on it for MIG or for
vGPUs of several sizes is lost (read from the tool; not seen on hardware). It refuses a GPU that is open. It
is never ended half-way, for then the GPU would have no driver: it may take as long as it likes, and outlives
a daemon that ends meanwhile. So its output goes to memory of its own: a pipe without a reader would end
it at its next word.
"""

from __future__ import annotations

import errno
import os

from nodeagent.base import hints
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.apply import write
from nodeagent.kernel.apply.write import write_verified
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import nvidia, pci
from nodeagent.model.change import Action

_HINTS = {  # sriov_numvfs_store in drivers/pci/iov.c
    errno.ENOENT: "its driver makes no VFs (vfio-pci does not), or it has none, or the function is gone",
    errno.ERANGE: "the function cannot have so many VFs: see sriov_totalvfs beside it",
    errno.ENOMEM: "the firmware has reserved no addresses (MMIO, bus numbers) for the VFs, see dmesg: switch "
    "SR-IOV on in its setup, or try pci=realloc in the kernel parameters",
}
_LEFT_BEHIND = "reboot the node when it is drained: such a write can crash the kernel"  # drivers/pci/iov.c
_OFF, _ON = "0", "1"
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_TOOL_HINT = (
    "run it by hand on the host to see more; it needs lspci, setpci, the module pci-pf-stub, and a GPU that "
    "is not open"
)


def set_number(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Make or remove the VFs; nothing if there are as many already.

    :raises KernelRefused: as ``write_verified``, and then the switch says what it said before, or the text
        that it does not; at once if VFs of the function were left behind.
    """
    address, count = action.address, action.count or 0
    path = f"{pci.DEVICES}/{address}/sriov_numvfs"
    if _is_done(root, address, count, path):
        return
    was_switched = action.unprobed and _set_autoprobe(root, address, _OFF, timeouts)
    otherwise = f"{address} has another number of VFs"
    try:
        write_verified(
            root, timeouts, path, str(count), lambda: len(_vfs(root, address)) == count, otherwise, _HINTS
        )
    except KernelRefused as error:
        if not was_switched:
            raise
        raise _restore_switch(root, address, error, timeouts) from error


def probed(root: Root, address: str) -> bool:
    """True if drivers of the host are asked about new VFs of a function now, and that can be changed."""
    return root.text(f"{pci.DEVICES}/{address}/{pci.AUTOPROBE}") == _ON


def restore_autoprobe(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Drivers of the host are asked about VFs again; nothing is written if they are.

    :raises KernelRefused: as ``write_verified``.
    """
    _set_autoprobe(root, action.address, _ON, timeouts)


def _set_autoprobe(root: Root, address: str, wanted: str, timeouts: Timeouts) -> bool:
    """Have drivers asked about VFs, or not; False if that is so already, or there is no such switch."""
    path = f"{pci.DEVICES}/{address}/{pci.AUTOPROBE}"
    if (now := root.text(path)) in (None, wanted):
        return False
    write_verified(root, timeouts, path, wanted, lambda: root.text(path) == wanted, f"it says {now}")
    return True


def _restore_switch(root: Root, address: str, error: KernelRefused, timeouts: Timeouts) -> KernelRefused:
    """The refusal of the number of VFs, after the switch says again what it said."""
    try:
        _set_autoprobe(root, address, _ON, timeouts)
    except KernelRefused as second:
        what = f"{error.what}; and what was done before cannot be taken back: {second.what}"
        return KernelRefused(what, error.hint, errno=error.errno, path=error.path)
    return error


def run_sriov_manage(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Have the tool make or remove the VFs; nothing if there are as many already.

    :raises KernelRefused: as ``run_tool``, and if there is another number of VFs afterwards.
    """
    address, count = action.address, action.count or 0
    path = nvidia.SRIOV_MANAGE
    if not _is_done(root, address, count, path):
        run_tool(root, address, make=count > 0)
        if not write.wait_for_effect(lambda: len(_vfs(root, address)) == count, timeouts):
            what = f"{path} ended without an error, but {address} has {len(_vfs(root, address))} VFs"
            raise KernelRefused(what, write.LOG, path=path)


def _is_done(root: Root, address: str, count: int, path: str) -> bool:
    """True if there are as many VFs.

    :raises KernelRefused: if some were left behind: then ``path`` must not be used.
    """
    vfs = _vfs(root, address)
    lost = pci.find_vfs_of(root, address).difference(vfs)
    if len(vfs) != count and lost:
        what = f"{path} is not used: {min(lost)} was left behind when {address} was removed"
        raise KernelRefused(what, _LEFT_BEHIND, path=path)
    return len(vfs) == count


def _vfs(root: Root, address: str) -> tuple[str, ...]:
    """The VFs that a function lists."""
    device = f"{pci.DEVICES}/{address}"
    links = (name for name in root.names(device) if name.startswith("virtfn"))
    return tuple(root.link(f"{device}/{name}") or name for name in links)


def run_tool(root: Root, address: str, *, make: bool) -> None:
    """Make all VFs of a GPU, or remove them. Blocks until the tool has ended.

    :raises KernelRefused: if it cannot be run, or says that it failed; at once if MIG is set up on the GPU.
    """
    if _has_gpu_instances(root, address):
        raise KernelRefused(
            f"{nvidia.SRIOV_MANAGE} is not run: {address} has GPU instances of MIG, which it would take away",
            "remove them first if nobody needs them, or make the VFs by hand before MIG is set up",
            path=nvidia.SRIOV_MANAGE,
        )
    order = "-e" if make else "-d"
    try:
        code, output = _run([root.path(nvidia.SRIOV_MANAGE), order, address])
    except OSError as error:
        what = f"{nvidia.SRIOV_MANAGE} cannot be run: {hints.strerror(error)}"
        raise KernelRefused(what, hints.for_errno(error, "run"), path=nvidia.SRIOV_MANAGE) from error
    if code:
        last = output.strip().rpartition("\n")[2][:200]
        what = f"{nvidia.SRIOV_MANAGE} {order} {address} ended with {code}: {last or 'no word'}"
        raise KernelRefused(what, _TOOL_HINT, path=nvidia.SRIOV_MANAGE)


def _run(command: list[str]) -> tuple[int, str]:
    """The exit code of a command, and what it said. :raises OSError: if it cannot be run."""
    import subprocess  # rarely needed

    with os.fdopen(os.memfd_create("sriov-manage"), "w+b") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
            start_new_session=True,  # Ctrl-C is meant for the daemon
            check=False,
        )
        output.seek(0)
        return done.returncode, output.read().decode(errors="replace")


def _has_gpu_instances(root: Root, address: str) -> bool:
    """True if the GPU is divided by MIG (NVIDIA, MIG User Guide: device nodes and capabilities)."""
    number = nvidia.read_minor(root, address)
    return any(name.startswith("gi") for name in root.names(f"{_CAPABILITIES}/gpu{number}/mig"))
