# SPDX-License-Identifier: Apache-2.0
"""Changes the drivers of functions of one IOMMU group: of all of them, or of none.

First all are released: for each function ``driver_override`` comes first, then ``unbind`` from the present
driver. Then all are probed: ``drivers_probe`` says nothing of a probe that has failed, so the link to the
driver is read back. If one is refused, the others are rolled back, in reverse order. Before the first write
the host's use of all of them is read once more, and of each again when its turn comes: the one before may
have waited in the kernel for hours. ``new_id`` is never used, since it also binds functions
that are plugged later; nor is a function removed and rescanned, as that would lose the override (Linux 6.1
to 7.2).
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
_NONE = ("", "(null)")  # what driver_override says where none is set
_HINTS = {
    errno.ENODEV: "it is gone, or its driver has changed: the next look at the host shows which",
    errno.EINVAL: "another function of its IOMMU group is in use: it may not get a driver of the host now",
}
_MODULE = "load it with modprobe {0}, and name it in /etc/modules-load.d/{0}.conf for each boot"


def change_drivers(root: Root, action: Action, timeouts: Timeouts) -> None:
    """Make all moves; what is as it should be is not written. Blocks for as long as a function is in use.

    :raises KernelRefused: if a move cannot be made. Then, too, all functions are what they were
        (``Move.back``), or the text says of which that is not so.
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
    """True if the function has lost a driver of the host by the attempt."""
    working = move.now is not None and not vfio_driver(move.now)
    return working and _driver(root, move.address) != move.now


def _override_for(driver: str | None) -> str | None:
    """The override that goes with a driver: those of the host need none."""
    return driver if vfio_driver(driver) else None


def _check_allowed(root: Root, move: Move, forced: bool) -> None:
    """Right before the first write.

    :raises KernelRefused: if the function is another than was planned for, or is used by the host.
    """
    device = f"{pci.DEVICES}/{move.address}"
    if not root.exists(device):
        raise _refusal(move, "it is no longer on the host", "re-plug it, or remove it from the rule")
    if (now := _driver(root, move.address)) != move.now:
        what = f"it was on {move.now or 'no driver'} a moment ago, and is on {now or 'no driver'}"
        raise _refusal(move, what, "the next look at the host shows what it is now")
    if move.to is not None and not root.exists(f"{_DRIVERS}/{move.to}"):
        raise _refusal(move, f"the driver {move.to} is not loaded", _MODULE.format(move.to))
    override = _override(root, move.address)
    if override is not None and not vfio_driver(override):
        hint = "find out who has set it (driverctl list-overrides), and have it unset there"
        raise _refusal(move, f"its driver_override says {override}", hint)
    if vfio_driver(move.to) and not vfio_driver(now):
        _check_unused(root, move, forced)


def _check_unused(root: Root, move: Move, forced: bool) -> None:
    """:raises KernelRefused: if the host uses it, its use is unknown, or it has VFs, mdevs or a vGPU."""
    address = PciAddress(move.address)
    children = [name for name in root.names(f"{pci.DEVICES}/{address}") if name.startswith("virtfn")]
    if children or mdevs.instances_on(root, (address,)):
        raise _refusal(move, "it has VFs or mdevs", "remove them first, once they are not in use")
    vgpu_type = root.text(f"{pci.DEVICES}/{address}/{nvidia.VGPU_TYPE}")
    if vgpu_type not in (None, "", nvidia.NO_VGPU):
        hint = "clear the type first, once it is not in use"
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
        raise _refusal(move, f"its use cannot be read from here: {unseen}", hint)


def _refusal(move: Move, why: str, hint: str) -> KernelRefused:
    return KernelRefused(f"{move.address} is unchanged: {why}", hint, path=f"{pci.DEVICES}/{move.address}")


def _release(root: Root, address: str, driver: str | None, timeouts: Timeouts) -> None:
    """One function from the driver that it has, if that is another than it is to have; None: none.

    :raises KernelRefused: with the write after which it did not become so.
    """
    _set_override(root, address, _override_for(driver), timeouts)
    if _driver(root, address) != driver:
        _unbind(root, address, timeouts)


def _probe(root: Root, address: str, driver: str | None, timeouts: Timeouts) -> None:
    """One function, let go of, to the driver that it is to have.

    :raises KernelRefused: as ``_release``.
    """
    if driver is not None and _driver(root, address) != driver:
        otherwise = f"{driver} has not taken {address}"
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
    """Blocks for as long as a process has a VFIO device open: to find that out before is the caller's."""
    driver = _driver(root, address)
    if driver is None:
        return
    path, otherwise = f"{_DRIVERS}/{driver}/unbind", f"{driver} has not let go of {address}"
    write_verified(root, timeouts, path, address, lambda: _driver(root, address) is None, otherwise, _HINTS)


def _roll_back(root: Root, moves: Iterable[Move], error: KernelRefused, timeouts: Timeouts) -> KernelRefused:
    """The refusal, after these moves were taken back in this order; with what could not be."""
    stuck = [text for move in moves if (text := _restore(root, move, timeouts)) is not None]
    if not stuck:
        return error
    what = f"{error.what}; and what was done before cannot be taken back: {'; '.join(stuck)}"
    return KernelRefused(
        what, error.hint, errno=error.errno, path=error.path, interrupting=error.interrupting
    )


def _restore(root: Root, move: Move, timeouts: Timeouts) -> str | None:
    """Take a function back to where it goes without its group; why it cannot, if so."""
    try:
        _release(root, move.address, move.back, timeouts)
        _probe(root, move.address, move.back, timeouts)
    except KernelRefused as error:
        return f"{move.address} ({error.what})"
    return None


def _driver(root: Root, address: str) -> str | None:
    return root.link(f"{pci.DEVICES}/{address}/driver")


def _override(root: Root, address: str) -> str | None:
    """The driver_override that is set, or None.

    The read may hang while the function is taken from a holder (Linux 6.1).
    """
    text = root.text(f"{pci.DEVICES}/{address}/driver_override")
    return None if text is None or text in _NONE else text
