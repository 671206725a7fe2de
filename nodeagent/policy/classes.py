# SPDX-License-Identifier: Apache-2.0
"""Texts for the class code of a PCI function, and the advice whether to bind the function to vfio-pci. Pure.

The codes are those of the "PCI Code and ID Assignment Specification" (pci.ids has them under "C").
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.model.host import Host, HostUses, PciFunction, UseKind

_WORDS = {
    "0108": "an NVMe controller",
    "01": "a storage controller",
    "02": "a network controller",
    "03": "a display controller",
    "0403": "an audio device",
    "04": "a multimedia controller",
    "0604": "a PCI bridge",
    "06": "a bridge",
    "07": "a communication controller",
    "08": "a system peripheral",
    "0c03": "a USB controller",
    "0c05": "an SMBus",
    "0c": "a serial bus controller",
    "12": "an accelerator",
}
"""The beginning of a code → the text for the function; a longer beginning takes precedence."""

READ_USES = "run nodeagent in the host's PID and network namespaces"
_SHOWN = 3  # uses that are listed; others are counted
_NOT_NEEDED = ("04",)  # no host depends on these
_DISPLAY, _AUDIO = "03", "0403"


def describe_class(function: PciFunction) -> str:
    """The kind of the PCI function as a text with its article, such as "a network controller"."""
    code = function.pci_class or ""
    found = (_WORDS.get(code[:length]) for length in (4, 2))
    return next((each for each in found if each), "a device of an unknown class")


def describe_uses(function: PciFunction) -> str:
    """The uses of the function by the host, as a text; "" if none was found."""
    found = () if function.uses is None else function.uses.found
    if not found:
        return ""
    named = "; ".join(map(str, found[:_SHOWN]))
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"in use by the host ({named}{more})"


def find_refusals(uses: HostUses, name: str, forced: bool) -> Iterator[tuple[str, str]]:
    """Why the device is not assigned to VMs, and the fix: one pair of texts for each use by the host.

    Mounted disks, network interfaces that are up, and keyboards stay with the host: such functions are not
    bound to VFIO, and such USB devices are not offered, unless the operator overrides that (``forced``). If
    nodeagent cannot read whether the host uses the device, the device counts as used.
    """
    counting = uses.counting(forced)
    for use in counting.found:
        hint = "remove the device from the rule, or end its use on the host"
        if use.kind is UseKind.POOL:
            hint = f"zpool status shows its disks; if this device is none of these disks, {_override(name)}"
        yield f"in use by the host ({use})", hint
    for unseen in counting.unseen:
        hint = f"{READ_USES}; or {_override(name)} if you know that it is not in use"
        yield f"nodeagent cannot read here whether the host uses it: {unseen}", hint


def _override(name: str) -> str:
    """The advice how a rule can bind or offer the device although the host uses it."""
    return f'write force: ["{name}"] into a rule for this device'


LEAVE = "remove it from the rule"


def advise_bind(function: PciFunction, also: str = "", mdevs: int = 0, leave: str = LEAVE) -> str:
    """The advice to bind the function to vfio-pci. ``also`` is the end of the advice, ``mdevs`` the number of
    mdevs on the PCI function.

    If the host uses the function, or vfio-pci refuses it, the advice is to leave the function on its driver.
    The host may use a network, storage, USB or unknown device, or a GPU on its host driver, in ways that are
    not visible; therefore the advice for such a device begins with a condition. Unbinding a driver removes
    its mdevs and VFs, so the advice is to remove the mdevs and VFs first.
    """
    if used := describe_uses(function):
        return f"{used}: {leave}"
    if function.denylisted and not function.vfio:
        return f"{describe_denylist(function)}: {leave}"
    if parts := describe_children(function, mdevs):
        return (
            f"remove its {parts} first, once they are not in use: binding {function.address} to "
            f"vfio-pci removes them"
        )
    unused = function.driver is None or function.vfio
    if unused or (function.pci_class or "").startswith(_NOT_NEEDED):
        return f"bind {function.address} to vfio-pci{also}"
    name = f"{function.address} ({describe_class(function)})"
    return (
        f"{_describe_unread_uses(function)}if this host does not need {name}, "
        f"bind it to vfio-pci{also}; otherwise leave it as it is"
    )


def _describe_unread_uses(function: PciFunction) -> str:
    """The possible uses by the host that cannot be read, as the beginning of a sentence."""
    unseen = () if function.uses is None else function.uses.unseen
    return f"cannot be read from here: {'; '.join(unseen)}; " if unseen else ""


def find_card(audio: PciFunction, host: Host) -> PciFunction | None:
    """The display function in the same slot and IOMMU group as an audio function; None for other functions.

    An audio function that is alone in its IOMMU group belongs to no card, and is offered if a rule matches
    it.
    """
    if not (audio.pci_class or "").startswith(_AUDIO):
        return None
    slot = audio.address.rpartition(".")[0]
    beside = (each for each in host.members(audio.group) if each.address.rpartition(".")[0] == slot)
    return next((each for each in beside if (each.pci_class or "").startswith(_DISPLAY)), None)


def describe_denylist(function: PciFunction) -> str:
    """The message that vfio-pci has the ids of the function on its denylist, so it refuses to bind it."""
    return f"vfio-pci has {function.vendor}:{function.device} on its denylist (disable_denylist is N)"


def describe_children(function: PciFunction, mdevs: int) -> str:
    """The numbers of mdevs and VFs of a PCI function, as a text; "" if there are none."""
    counts = ((mdevs, "mdev"), (len(function.vfs), "VF"))
    return " and ".join(f"{count} {noun}{'s' if count > 1 else ''}" for count, noun in counts if count)
