# SPDX-License-Identifier: Apache-2.0
"""Writes the files that bind functions to VFIO drivers at boot, before other drivers can bind them.

When vfio-pci is loaded, the modprobe.d file sets ``driver_override`` of each address, if the same device is
still at this address: addresses may change when a card is added. The file does not use ``options vfio-pci
ids=``, which would bind all devices with these ids. The initramfs loads vfio-pci before udev loads other
modules: dracut with ``force_drivers`` (rd.driver.pre, before its udev), initramfs-tools with a script that
sorts before that of udev (dracut 059, initramfs-tools 0.142). The udev rule is for functions that are plugged
in or rescanned later. nodeagent stores the list of these functions only in the modprobe.d file. Each file has
a checksum: an edited file is neither replaced nor removed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from nodeagent.base import files
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import Root
from nodeagent.model.change import AtBoot, BootFile, BootFiles, FileFate

MODPROBE = "/etc/modprobe.d/nodeagent-vfio.conf"
UDEV = "/etc/udev/rules.d/10-nodeagent-vfio.rules"
DRACUT = "/etc/dracut.conf.d/90-nodeagent-vfio.conf"
HOOK = "/etc/initramfs-tools/hooks/nodeagent-vfio"
SCRIPT = "/etc/initramfs-tools/scripts/init-top/00-nodeagent-vfio"
_KNOWN = (UDEV, DRACUT, HOOK, SCRIPT, MODPROBE)  # the file that ``read`` reads is written last
_DRACUT = ("/usr/bin/dracut", "/usr/sbin/dracut")
_INITRAMFS_TOOLS = ("/usr/sbin/update-initramfs", "/sbin/update-initramfs")
_MARK = "# made by nodeagent bind --at-boot, taken back by nodeagent release; sha256 of the other lines: "
_ENTRY = re.compile(r"# ([0-9a-f:.]+) ([0-9a-f]{4}):([0-9a-f]{4}) ([a-z0-9_-]+)", re.ASCII)
_SHELL = "#!/bin/sh\n"


def read(root: Root) -> tuple[AtBoot, ...]:
    """Return the functions that the files currently name. Blocks."""
    lines = (root.text(MODPROBE) or "").splitlines()
    return tuple(AtBoot(*found.groups()) for found in map(_ENTRY.fullmatch, lines) if found is not None)


def changes(root: Root, entries: Sequence[AtBoot]) -> BootFiles:
    """Return the files to write and to remove for exactly these functions. Blocks.

    :raises KernelRefused: if a file with that name is not from nodeagent, or was edited.
    """
    wanted = dict(_make_texts(root, entries)) if entries else {}
    found: list[BootFile] = []
    for path in _KNOWN:
        present, text = _read(root, path), wanted.get(path)
        if present == text:
            continue
        if present is not None and not _is_unchanged(present):
            what = f"{path} was not written by nodeagent, or was edited; it is not changed"
            raise KernelRefused(what, "check its content, move it away, and try again", path=path)
        fate = FileFate.REMOVED if text is None else FileFate.WRITTEN
        found.append(BootFile(path, fate, text or "", runs=path in (HOOK, SCRIPT)))
    return BootFiles(tuple(found), _find_initramfs_command(root) if found else "")


def put(root: Root, change: BootFiles) -> None:
    """Write and remove the files. Blocks. :raises KernelRefused: if a file cannot be written or removed."""
    for file in change.files:
        if file.status is FileFate.WRITTEN:
            files.put(
                root.path(file.path), file.text, "nothing else is changed", mode=0o755 if file.runs else 0o644
            )
            continue
        try:
            Path(root.path(file.path)).unlink(missing_ok=True)
        except OSError as error:
            what = f"{file.path} cannot be removed: {error.strerror}"
            raise KernelRefused(what, "remove it by hand", path=file.path) from error


def _read(root: Root, path: str) -> str | None:
    try:
        return Path(root.path(path)).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
        raise KernelRefused(what, "check that path", path=path) from error


def _find_initramfs_command(root: Root) -> str:
    if _has(root, _DRACUT):
        return "dracut --force --regenerate-all"
    return "update-initramfs -u -k all" if _has(root, _INITRAMFS_TOOLS) else ""


def _has(root: Root, paths: Sequence[str]) -> bool:
    return any(root.exists(path) for path in paths)


def _make_texts(root: Root, entries: Sequence[AtBoot]) -> Iterator[tuple[str, str]]:
    names = [MODPROBE, UDEV]
    if _has(root, _DRACUT):
        names.append(DRACUT)
    elif _has(root, _INITRAMFS_TOOLS):
        names += [HOOK, SCRIPT]
    for name in names:
        head, body = _TEXTS[name]
        text = body(entries)
        yield name, f"{head}{_MARK}{_checksum(head + text)}\n{text}"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_unchanged(text: str) -> bool:
    """Return True if the file is from nodeagent and unchanged."""
    before, mark, rest = text.partition(_MARK)
    checksum, _, after = rest.partition("\n")
    return bool(mark) and checksum == _checksum(before + after)


def _drivers(entries: Sequence[AtBoot]) -> list[str]:
    return sorted({entry.driver for entry in entries})


def _modprobe(entries: Sequence[AtBoot]) -> str:
    lines = [f"# {each.address} {each.vendor}:{each.device} {each.driver}" for each in entries]
    for driver in _drivers(entries):
        some = " ".join(
            f"{each.address}=0x{each.vendor}0x{each.device}" for each in entries if each.driver == driver
        )
        lines.append(
            f"install {driver} for each in {some}; do at=/sys/bus/pci/devices/${{each%=*}}; "
            f'read -r v <$at/vendor && read -r d <$at/device && [ "$v$d" = "${{each#*=}}" ] && '
            f"echo {driver} >$at/driver_override; done 2>/dev/null; "
            f"/sbin/modprobe --ignore-install {driver} $CMDLINE_OPTS"
        )
    return "\n".join(lines) + "\n"


def _udev(entries: Sequence[AtBoot]) -> str:
    return "".join(
        f'ACTION=="add", SUBSYSTEM=="pci", KERNEL=="{each.address}", ATTR{{vendor}}=="0x{each.vendor}", '
        f'ATTR{{device}}=="0x{each.device}", ATTR{{driver_override}}="{each.driver}"\n'
        for each in entries
    )


def _dracut(entries: Sequence[AtBoot]) -> str:
    """Return one line per driver: dracut 059 corrects the name only if it is alone on the line."""
    forced = "".join(f'force_drivers+=" {driver.replace("-", "_")} "\n' for driver in _drivers(entries))
    return f'{forced}install_items+=" {MODPROBE} {UDEV} "\n'


def _script(entries: Sequence[AtBoot]) -> str:
    loads = "".join(f"modprobe {driver} || true\n" for driver in _drivers(entries))
    return f'case "$1" in prereqs) echo; exit 0 ;; esac\n{loads}'


def _hook(entries: Sequence[AtBoot]) -> str:
    adds = "".join(f"manual_add_modules {driver}\n" for driver in _drivers(entries))
    return f'case "$1" in prereqs) echo; exit 0 ;; esac\n. /usr/share/initramfs-tools/hook-functions\n{adds}'


_TEXTS: Mapping[str, tuple[str, Callable[[Sequence[AtBoot]], str]]] = {
    MODPROBE: ("", _modprobe),
    UDEV: ("", _udev),
    DRACUT: ("", _dracut),
    HOOK: (_SHELL, _hook),
    SCRIPT: (_SHELL, _script),
}
