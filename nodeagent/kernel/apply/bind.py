# SPDX-License-Identifier: Apache-2.0
"""Changes the drivers of functions of one IOMMU group: of all of them, or of none.

First all functions are released: for each function, ``driver_override`` is written, then ``unbind`` of the
current driver. Then all functions are probed. ``drivers_probe`` does not report a failed probe, so the driver
link is read. If one step fails, the others are rolled back in reverse order. The host's use of all functions
is read again before the first write, and for each function before its own write, because the previous write
may have blocked in the kernel for hours. ``new_id`` is never used, since it also binds functions that are
plugged in later. Functions are not removed and rescanned, as that would clear the override (Linux 6.1 to
7.2).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.apply.write import write_verified
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import host_use, mdevs, nvidia, pci
from nodeagent.model.change import Action, Move
from nodeagent.model.ids import PciAddress, vfio_driver

_DRIVERS = "/sys/bus/pci/drivers"
_PROBE = "/sys/bus/pci/drivers_probe"
_NONE = ("", "(null)")  # content of driver_override when none is set
_HINTS = {
    errno.ENODEV: "the next scan shows whether the function was removed or has another driver",
    errno.EINVAL: "another function of its IOMMU group is in use: no host driver may be bound now",
}
_MODULE = "load it with modprobe {0}, and name it in /etc/modules-load.d/{0}.conf for each boot"


def change_drivers(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Change the drivers of all functions in ``action``; a value that is already set is not written.
    The call blocks as long as a function is in use.

    :raises KernelRefused: if a move fails. All functions are then back in their previous state
        (``Move.back``), or the message names those that are not.
    """
    arrived = [move for move in action.moves if _is_done(root, move.address, move.to)]
    moves = [move for move in action.moves if move not in arrived]
    for move in moves:
        _check_allowed(root, move, move.address in action.forced)
    done = set(arrived)
    try:
        for number, move in enumerate(moves):
            if number:
                _check_allowed(root, move, move.address in action.forced)
            done.add(move)
            _release(root, move.address, move.to, timeouts)
        for move in moves:
            _probe(root, move.address, move.to, timeouts)
    except KernelRefused as error:
        error.interrupting = any(_is_taken_away(root, move) for move in moves)
        back = [each for each in reversed(action.moves) if each in done]
        raise _roll_back(root, back, error, timeouts) from error


def _is_done(root: Root, address: str, driver: str | None) -> bool:
    return _driver(root, address) == driver and _override(root, address) == _override_for(driver)


def _is_taken_away(root: Root, move: Move) -> bool:
    """Return True if the attempt has unbound the function from a host driver."""
    working = move.now is not None and not vfio_driver(move.now)
    return working and _driver(root, move.address) != move.now


def _override_for(driver: str | None) -> str | None:
    """Return the override for a driver: host drivers need none."""
    return driver if vfio_driver(driver) else None


def _check_allowed(root: Root, move: Move, forced: bool) -> None:
    """Check a driver change just before the first write.

    :raises KernelRefused: if the function has changed since the plan, or is used by the host.
    """
    device = f"{pci.DEVICES}/{move.address}"
    if not root.exists(device):
        raise _refusal(move, "it is no longer on the host", "re-plug it, or remove it from the rule")
    if (now := _driver(root, move.address)) != move.now:
        what = f"its driver has changed from {move.now or 'none'} to {now or 'no driver'}"
        raise _refusal(move, what, "the next scan shows its current driver")
    if move.to is not None and not root.exists(f"{_DRIVERS}/{move.to}"):
        raise _refusal(move, f"the driver {move.to} is not loaded", _MODULE.format(move.to))
    override = _override(root, move.address)
    if override is not None and not vfio_driver(override):
        hint = "find the tool that has set it (driverctl list-overrides), and unset it there"
        raise _refusal(move, f"its driver_override says {override}", hint)
    if vfio_driver(move.to) and not vfio_driver(now):
        _check_unused(root, move, forced)


def _check_unused(root: Root, move: Move, forced: bool) -> None:
    """Check that the host does not use the function.

    :raises KernelRefused: if the host uses it, its use is unknown, or it has VFs, mdevs or a vGPU type.
    """
    address = PciAddress(move.address)
    children = [name for name in root.names(f"{pci.DEVICES}/{address}") if name.startswith("virtfn")]
    if children or mdevs.instances_on(root, (address,)):
        raise _refusal(move, "it has VFs or mdevs", "remove them first, once they are not in use")
    vgpu_type = root.text(f"{pci.DEVICES}/{address}/{nvidia.VGPU_TYPE}")
    if vgpu_type not in (None, "", nvidia.NO_VGPU):
        hint = "clear the vGPU type first, when the vGPU is not in use"
        raise _refusal(move, f"it has the vGPU type {vgpu_type}", hint)
    counting = host_use.find_uses(root, (address,), closely=True)[address].counting(forced)
    for use in counting.found:
        text = f"in use by the host ({use})"
        raise _refusal(move, text, "remove it from the rule, or end that use on the host")
    for unseen in counting.unseen:
        hint = (
            "run nodeagent in the host's PID and network namespaces; "
            f"or add {address} to force if you know that it is not in use"
        )
        raise _refusal(move, f"nodeagent cannot read here whether the host uses it: {unseen}", hint)


def _refusal(move: Move, why: str, hint: str) -> KernelRefused:
    return KernelRefused(f"{move.address} is unchanged: {why}", hint, path=f"{pci.DEVICES}/{move.address}")


def _release(root: Root, address: str, driver: str | None, timeouts: Timeouts) -> None:
    """Unbind one function from its current driver, unless that is ``driver``; None requests no driver.

    :raises KernelRefused: with the write that had no effect.
    """
    _set_override(root, address, _override_for(driver), timeouts)
    if _driver(root, address) != driver:
        _unbind(root, address, timeouts)


def _probe(root: Root, address: str, driver: str | None, timeouts: Timeouts) -> None:
    """Bind one released function to the requested driver.

    :raises KernelRefused: as ``_release``.
    """
    if driver is not None and _driver(root, address) != driver:
        otherwise = f"{driver} has not bound {address}"
        write_verified(
            root, timeouts, _PROBE, address, lambda: _driver(root, address) == driver, otherwise, _HINTS
        )


def _set_override(root: Root, address: str, driver: str | None, timeouts: Timeouts) -> None:
    if _override(root, address) == driver:
        return
    path = f"{pci.DEVICES}/{address}/driver_override"
    otherwise = f"it says {root.text(path)}"
    write_verified(root, timeouts, path, driver or "", lambda: _override(root, address) == driver, otherwise)


def _unbind(root: Root, address: str, timeouts: Timeouts) -> None:
    """Unbind a function.

    The call blocks as long as a process has the function's VFIO device open, so the caller checks that first.
    """
    driver = _driver(root, address)
    if driver is None:
        return
    path, otherwise = f"{_DRIVERS}/{driver}/unbind", f"{driver} has not released {address}"
    write_verified(root, timeouts, path, address, lambda: _driver(root, address) is None, otherwise, _HINTS)


def _roll_back(root: Root, moves: Iterable[Move], error: KernelRefused, timeouts: Timeouts) -> KernelRefused:
    """Undo these driver changes in this order; return the error, extended by the changes that could not be
    undone.
    """
    stuck = [text for move in moves if (text := _restore(root, move, timeouts)) is not None]
    if not stuck:
        return error
    what = f"{error.what}; and undoing the earlier steps failed: {'; '.join(stuck)}"
    return KernelRefused(
        what, error.hint, errno=error.errno, path=error.path, interrupting=error.interrupting
    )


def _restore(root: Root, move: Move, timeouts: Timeouts) -> str | None:
    """Return a function to its previous driver; return the reason if that fails."""
    try:
        _release(root, move.address, move.back, timeouts)
        _probe(root, move.address, move.back, timeouts)
    except KernelRefused as error:
        return f"{move.address} ({error.what})"
    return None


def _driver(root: Root, address: str) -> str | None:
    return root.link(f"{pci.DEVICES}/{address}/driver")


def _override(root: Root, address: str) -> str | None:
    """Return the driver_override of the function, or None.

    The read may hang while the function is being unbound (Linux 6.1).
    """
    text = root.text(f"{pci.DEVICES}/{address}/driver_override")
    return None if text is None or text in _NONE else text
