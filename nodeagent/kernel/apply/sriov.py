# SPDX-License-Identifier: Apache-2.0
"""Sets the number of VFs of a function, and whether the kernel probes host drivers for new VFs.

``sriov_drivers_autoprobe`` applies when the kernel creates a VF, and at each later search for a driver,
except to a VF with a ``driver_override`` (pci_device_can_probe in drivers/pci/pci-driver.c). So autoprobe
stays disabled as long as a rule requires that; a host driver that udev loads for new VFs then binds no VF.

Only NVIDIA's sriov-manage can create the VFs of its GPUs, since their driver does not support
``sriov_numvfs``. The tool unbinds the GPU, creates or removes all VFs, and binds it again; a configuration
for MIG or for vGPUs of several sizes is lost (according to the tool's source; not seen on hardware). The tool
rejects a GPU that a process has open. The tool is never interrupted, because the GPU would be left without a
driver: it has no timeout and outlives a daemon that ends. Its output goes to a memory file, because writing
to a pipe without a reader would kill the tool.
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
    errno.ENOENT: "the PF has no driver, its driver (such as vfio-pci) supports no VFs, or the PF was "
    "removed",
    errno.ERANGE: "the PF supports fewer VFs: see its sriov_totalvfs",
    errno.ENOMEM: "the firmware has reserved no addresses (MMIO, bus numbers) for the VFs, see dmesg: switch "
    "SR-IOV on in the firmware's setup, or try pci=realloc in the kernel parameters",
}
_LEFT_BEHIND = "drain and reboot the Node: writing sriov_numvfs now can crash the kernel"  # drivers/pci/iov.c
_OFF, _ON = "0", "1"
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_TOOL_HINT = (
    "run sriov-manage by hand on the host for details; it needs lspci, setpci, the module pci-pf-stub, "
    "and a GPU that no process has open"
)


def set_number(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Create or remove VFs; does nothing if their number is already as requested.

    :raises KernelRefused: as ``write_verified``, after restoring the autoprobe setting, or with a message
        that it was not restored; immediately if VFs of the function were left behind.
    """
    address, count = action.address, action.count or 0
    path = f"{pci.DEVICES}/{address}/sriov_numvfs"
    if _is_done(root, address, count, path):
        return
    was_switched = action.unprobed and _set_autoprobe(root, address, _OFF, timeouts)
    otherwise = f"{address} does not have the requested number of VFs"
    try:
        write_verified(
            root, timeouts, path, str(count), lambda: len(_vfs(root, address)) == count, otherwise, _HINTS
        )
    except KernelRefused as error:
        if not was_switched:
            raise
        raise _restore_switch(root, address, error, timeouts) from error


def probed(root: Root, address: str) -> bool:
    """Return True if the kernel probes host drivers for new VFs of a function, and this setting can be
    changed.
    """
    return root.text(f"{pci.DEVICES}/{address}/{pci.AUTOPROBE}") == _ON


def restore_autoprobe(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Enable the probing of host drivers for VFs; write nothing if it is enabled already.

    :raises KernelRefused: as ``write_verified``.
    """
    _set_autoprobe(root, action.address, _ON, timeouts)


def _set_autoprobe(root: Root, address: str, wanted: str, timeouts: Timeouts) -> bool:
    """Enable or disable autoprobe; return False if it is set so already, or the attribute does not exist."""
    path = f"{pci.DEVICES}/{address}/{pci.AUTOPROBE}"
    if (now := root.text(path)) in (None, wanted):
        return False
    write_verified(root, timeouts, path, wanted, lambda: root.text(path) == wanted, f"it says {now}")
    return True


def _restore_switch(root: Root, address: str, error: KernelRefused, timeouts: Timeouts) -> KernelRefused:
    """Restore the autoprobe setting; return the error, extended if the restore fails too."""
    try:
        _set_autoprobe(root, address, _ON, timeouts)
    except KernelRefused as second:
        what = f"{error.what}; and undoing the earlier steps failed: {second.what}"
        return KernelRefused(what, error.hint, errno=error.errno, path=error.path)
    return error


def run_sriov_manage(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Run the tool to create or remove the VFs; does nothing if their number is already as requested.

    :raises KernelRefused: as ``run_tool``, and if the number of VFs differs afterwards.
    """
    address, count = action.address, action.count or 0
    path = nvidia.SRIOV_MANAGE
    if not _is_done(root, address, count, path):
        run_tool(root, address, make=count > 0)
        if not write.wait_for_effect(lambda: len(_vfs(root, address)) == count, timeouts):
            what = f"{path} ended without an error, but {address} has {len(_vfs(root, address))} VFs"
            raise KernelRefused(what, write.LOG, path=path)


def _is_done(root: Root, address: str, count: int, path: str) -> bool:
    """Return True if the function has this number of VFs.

    :raises KernelRefused: if VFs were left behind, in which case ``path`` must not be used.
    """
    vfs = _vfs(root, address)
    lost = pci.find_vfs_of(root, address).difference(vfs)
    if len(vfs) != count and lost:
        what = f"{path} is not used: {min(lost)} remained when {address} was removed"
        raise KernelRefused(what, _LEFT_BEHIND, path=path)
    return len(vfs) == count


def _vfs(root: Root, address: str) -> tuple[str, ...]:
    """Return the VFs that a function lists."""
    device = f"{pci.DEVICES}/{address}"
    links = (name for name in root.names(device) if name.startswith("virtfn"))
    return tuple(root.link(f"{device}/{name}") or name for name in links)


def run_tool(root: Root, address: str, *, make: bool) -> None:
    """Create all VFs of a GPU, or remove them. Blocks until the tool has ended.

    :raises KernelRefused: if the tool cannot be run or fails; immediately if the GPU is configured for MIG.
    """
    if _has_gpu_instances(root, address):
        raise KernelRefused(
            f"{nvidia.SRIOV_MANAGE} is not run: {address} has GPU instances of MIG, which "
            "sriov-manage would delete",
            "delete the GPU instances if they are not needed, or create the VFs manually before "
            "MIG is set up",
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
        what = f"{nvidia.SRIOV_MANAGE} {order} {address} ended with {code}: {last or 'no output'}"
        raise KernelRefused(what, _TOOL_HINT, path=nvidia.SRIOV_MANAGE)


def _run(command: list[str]) -> tuple[int, str]:
    """Return the exit code and the output of a command. :raises OSError: if it cannot be run."""
    import subprocess  # imported here because it is rarely needed

    with os.fdopen(os.memfd_create("sriov-manage"), "w+b") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
            start_new_session=True,  # Ctrl-C must reach only the daemon
            check=False,
        )
        output.seek(0)
        return done.returncode, output.read().decode(errors="replace")


def _has_gpu_instances(root: Root, address: str) -> bool:
    """Return True if the GPU is divided by MIG (NVIDIA, MIG User Guide: device nodes and capabilities)."""
    number = nvidia.read_minor(root, address)
    return any(name.startswith("gi") for name in root.names(f"{_CAPABILITIES}/gpu{number}/mig"))
