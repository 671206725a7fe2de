# SPDX-License-Identifier: Apache-2.0
"""The kernel's command line: what a word on it means for the IOMMU, and how this host changes it. Pure.

Words are those of the kernel's Documentation/admin-guide/kernel-parameters.rst; tools those of the boot
loaders' own manuals. A change counts from the next boot on.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.model.surroundings import Loader

REBOOT = "drain the node and reboot"
OVERRIDE = "pcie_acs_override="
_OFF = {"iommu": "off", "amd_iommu": "off", "intel_iommu": "off"}
_NO_REMAPPING = ("nointremap", "intremap=off")
_GRUB, _KERNEL = "GRUB_CMDLINE_LINUX in /etc/default/grub", "/etc/kernel/cmdline"
_FILES = {
    Loader.UPDATE_GRUB: (_GRUB, "update-grub"),
    Loader.GRUB_MKCONFIG: (_GRUB, "grub2-mkconfig -o /boot/grub2/grub.cfg"),
    Loader.PROXMOX: (_KERNEL, "proxmox-boot-tool refresh"),
    Loader.KERNEL_INSTALL: (_KERNEL, "kernel-install for the running kernel"),
}
"""Loader → the file with the words, and what is to be run then."""
_ADD = {
    Loader.OSTREE: "rpm-ostree kargs --append-if-missing={}",
    Loader.GRUBBY: "grubby --update-kernel=ALL --args={}",
}
_TAKE = {
    Loader.OSTREE: "rpm-ostree kargs --delete={}",
    Loader.GRUBBY: "grubby --update-kernel=ALL --remove-args={}",
}


def iommu_off(words: Iterable[str]) -> str:
    """The word that switches the IOMMU off; "" if none does. The last one of a name counts."""
    last: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name in _OFF:
            last[name] = value
    return next((f"{name}={value}" for name, value in last.items() if _OFF[name] in value.split(",")), "")


def remapping_off(words: Iterable[str]) -> str:
    """The word that switches the remapping of interrupts off; "" if none does."""
    return next((word for word in words if word in _NO_REMAPPING), "")


def override(words: Iterable[str]) -> str:
    """The word of patched kernels that makes groups look smaller than they are; "" if there is none."""
    return next((word for word in words if word.startswith(OVERRIDE)), "")


def add(word: str, loader: Loader | None) -> str:
    """How this host adds a word."""
    if loader in _ADD:
        return f"run: {_ADD[loader].format(word)}; then {REBOOT}"
    if loader in _FILES:
        file, tool = _FILES[loader]
        return f"add {word} to {file}; {tool}; {REBOOT}"
    return f"add {word} to the command line of the kernel in its boot loader, and {REBOOT}"


def take(word: str, loader: Loader | None) -> str:
    """How this host takes a word out."""
    if loader in _TAKE:
        return f"take {word} out with: {_TAKE[loader].format(word)}; then {REBOOT}"
    if loader in _FILES:
        file, tool = _FILES[loader]
        return f"take {word} out of {file}; {tool}; {REBOOT}"
    return f"take {word} out of the command line of the kernel in its boot loader, and {REBOOT}"
