# SPDX-License-Identifier: Apache-2.0
"""What the class code of a PCI function says to people, and whether a host is advised to lose one. Pure.

The codes are those of the "PCI Code and ID Assignment Specification" (pci.ids has them under "C"). Knows
neither rules nor groups.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.model.host import Host, HostUses, PciFunction

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
"""The beginning of a code → what such a function is; a longer one goes before a shorter one."""

_SHOWN = 3  # uses that are named; of more there is a number
_MISSED_BY_NOBODY = ("04",)  # no host lives on one of these, nor computes on it
_DISPLAY, _AUDIO = "03", "0403"


def words(function: PciFunction) -> str:
    """What the function is, with its article."""
    code = function.pci_class or ""
    found = (_WORDS.get(code[:length]) for length in (4, 2))
    return next((each for each in found if each), "a device of an unknown class")


def in_use(function: PciFunction) -> str:
    """That the host itself uses the function, and for what; "" if nothing of that was seen."""
    found = () if function.uses is None else function.uses.found
    if not found:
        return ""
    named = "; ".join(map(str, found[:_SHOWN]))
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"in use by the host ({named}{more})"


def refusals(uses: HostUses, name: str, forced: bool) -> Iterator[tuple[str, str]]:
    """Why the device ``name`` stays with its host, and what to do: one pair for each use that keeps it.

    The same for a function that is to be bound and for a USB device that is to be given: what is mounted, up
    or typed on stays, unless an operator answers for it (``forced``); what could not be seen stays as well.
    """
    counting = uses.counting(forced)
    for use in counting.found:
        yield f"in use by the host ({use})", "leave it out, or have the host give it up"
    for unseen in counting.unseen:
        hint = (
            "run nodeagent where it can be seen (the host's PID and network namespaces); "
            f"or name {name} in force if you know better"
        )
        yield f"it cannot be seen from here: {unseen}", hint


LEAVE = "leave it out of the rule"


def bind(function: PciFunction, also: str = "", mdevs: int = 0, leave: str = LEAVE) -> str:
    """The advice to give the function to VFIO: ``also`` ends it, ``mdevs`` is how many it carries.

    What the host was seen to use is never bound: ``leave`` says what to do instead. A node may live on a
    network, storage or USB controller in ways that are not seen, and on what we do not know; it may show or
    compute on a GPU that its own driver has: there is an "if". And with its driver a function loses its
    mdevs and VFs, whoever uses them: they have to go first.
    """
    if used := in_use(function):
        return f"{used}: {leave}"
    if parts := carried(function, mdevs):
        return (
            f"remove its {parts} first, once nobody uses them: binding {function.address} to "
            f"vfio-pci takes them away"
        )
    unused = function.driver is None or function.vfio
    if unused or (function.pci_class or "").startswith(_MISSED_BY_NOBODY):
        return f"bind {function.address} to vfio-pci{also}"
    return (
        f"{_unseen(function)}if this host can do without {function.address} ({words(function)}), "
        f"bind it to vfio-pci{also}; otherwise leave it as it is"
    )


def _unseen(function: PciFunction) -> str:
    """What of its use cannot be seen, to begin a sentence with."""
    unseen = () if function.uses is None else function.uses.unseen
    return f"cannot be seen from here: {'; '.join(unseen)}; " if unseen else ""


def card_of(audio: PciFunction, host: Host) -> PciFunction | None:
    """The display function in the slot and group of an audio function, with which that goes; None for others.

    In a group of its own it goes with nothing: it is given if a rule names it.
    """
    if not (audio.pci_class or "").startswith(_AUDIO):
        return None
    slot = audio.address.rpartition(".")[0]
    beside = (each for each in host.members(audio.group) if each.address.rpartition(".")[0] == slot)
    return next((each for each in beside if (each.pci_class or "").startswith(_DISPLAY)), None)


def carried(function: PciFunction, mdevs: int) -> str:
    """The mdevs and VFs on a function, counted; "" if there are none."""
    counts = ((mdevs, "mdev"), (len(function.vfs), "VF"))
    return " and ".join(f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count)
