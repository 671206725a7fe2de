# SPDX-License-Identifier: Apache-2.0
"""Defines the accepted text formats of settings, with the error for any other text.

Formats are strict if a text could have two meanings: a number is plain decimal, a switch is ``true`` or
``false``, a duration has a unit, an id is plain hexadecimal. The hint of ``Invalid`` shows the correct
format. ``WORDS`` has the formats by name; the keys of records refer to these names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nodeagent.config.codec import Word
from nodeagent.config.problems import Invalid
from nodeagent.model import ids, nodes
from nodeagent.policy import naming

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from nodeagent.config.codec import Scalar

SUN_PATH = 107  # longest path of a unix socket in bytes: sun_path in <linux/un.h> without the closing NUL
# "nodeagent-" + 10 hex + "-" + pid (at most 4194304) + "-" + start (8 hex) + ".sock"
SOCKET_NAME = 10 + 10 + 1 + 7 + 1 + 8 + 5

_DRIVER = "[A-Za-z0-9_.+-]{1,64}"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h)", re.ASCII)
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,15})", re.ASCII)
_FOLDER = r"(?!\.{1,2}/)[A-Za-z0-9_.:@+-]+/"
_NODE = rf"/dev/(?:{_FOLDER})*(?!\.{{1,2}}$)[A-Za-z0-9_.:@+-]+"
_NODES = rf"/dev/(?:{_FOLDER})*(?!\.{{1,2}}$)(?:[A-Za-z0-9_.:@+*?-]|\[[A-Za-z0-9_.:@+!-]+\])+"
_OWN_CDI = "nodeagent.local/"  # nodeagent writes CDI files of these kinds for cdi: true
_INTERFACE = r"(?!\.{1,2}$)[^\s/:#]{1,15}"  # dev_valid_name in net/core/dev.c
_PLAIN_DOMAIN = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


def _flag(scalar: Scalar) -> bool:
    if scalar.plain and scalar.text in ("true", "false"):
        return scalar.text == "true"
    raise Invalid(f'"{scalar.text}" is neither true nor false', "write true or false, without quotes")


def integer(least: int, most: int) -> Word:
    """Return the format of a plain decimal number in a range."""

    def read(scalar: Scalar) -> int:
        if not scalar.plain or _INTEGER.fullmatch(scalar.text) is None:
            hint = "write decimal digits, without quotes or leading zeros"
            raise Invalid(f'"{scalar.text}" is not a number', hint)
        number = int(scalar.text)
        if not least <= number <= most:
            raise Invalid(f"{number} is out of range", f"write a number from {least} to {most}")
        return number

    return Word("number", read, {"type": "integer", "minimum": least, "maximum": most})


def choice(*values: str) -> Word:
    """Return the format that accepts one of these words."""

    def read(scalar: Scalar) -> str:
        if scalar.text in values:
            return scalar.text
        raise Invalid(
            f'"{scalar.text}" is not one of {", ".join(values)}', naming.suggest(scalar.text, values)
        )

    # YAML parsers of other programs read plain true and false as booleans
    switches = [value == "true" for value in values if value in ("true", "false")]
    return Word(" | ".join(values), read, {"enum": [*values, *switches]})


def member(values: type[StrEnum]) -> Word:
    """Return the format that accepts one member of an enumeration."""
    names = choice(*values)

    def read(scalar: Scalar) -> object:
        return values(str(names.read(scalar)))

    return names._replace(read=read, show=str)


def duration(least: float, most: float) -> Word:
    """Return the format of a number with a unit, converted to seconds."""

    def read(scalar: Scalar) -> float:
        match = _DURATION.fullmatch(scalar.text)
        if match is None:
            raise Invalid(f'"{scalar.text}" is not a duration', "write it such as 250ms, 1s, 2m or 1h")
        seconds = float(match[1]) * _UNITS[match[2]]
        if not least <= seconds <= most:
            what = f"{scalar.text} is out of range"
            raise Invalid(what, f"write a time from {duration_text(least)} to {duration_text(most)}")
        return seconds

    return Word("duration", read, {"type": "string", "pattern": f"^{_DURATION.pattern}$"}, duration_text)


def duration_text(seconds: float) -> str:
    """Return seconds in the format of the settings."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    return f"{seconds:g}s"


def matching(words: str, pattern: str, fault: str, hint: str) -> Word:
    """Return the format of a text that matches the whole pattern."""

    def read(scalar: Scalar) -> str:
        if re.fullmatch(pattern, scalar.text) is None:
            raise Invalid(f'"{scalar.text}" {fault}', hint)
        return scalar.text

    return Word(words, read)


def hexadecimal(words: str, digits: tuple[int, ...], example: str) -> Word:
    """Return the format of hexadecimal digits, converted to lower case."""
    lengths = " or ".join(map(str, digits))
    pattern = "|".join(f"[0-9A-Fa-f]{{{count}}}" for count in digits)

    def read(scalar: Scalar) -> str:
        text = scalar.text.lower()
        if re.fullmatch(pattern, text):
            return text
        bare = text.removeprefix("0x")
        meant = bare if bare != text and re.fullmatch(pattern, bare) else example
        what = f'"{scalar.text}" is not {lengths} hexadecimal digits'
        raise Invalid(what, f'write it such as "{meant}"')

    return Word(words, read, {"type": "string", "pattern": f"^(?:{pattern})$"})


def _subsystem(scalar: Scalar) -> str:
    text = scalar.text.lower()
    if re.fullmatch(r"[0-9a-f]{4}(:[0-9a-f]{4})?", text):
        return text
    raise Invalid(f'"{scalar.text}" is no subsystem', 'write it such as "10de:12a2" or "10de"')


def _address(scalar: Scalar) -> str:
    text = scalar.text.strip().lower()
    whole = ids.pci_address(text)
    if whole is not None:
        return whole
    if can_match(text):
        return text
    raise Invalid(
        f'"{scalar.text}" cannot match any PCI address',
        'write it such as "0000:86:00.0" or "0000:86:00.*", with the domain in front',
    )


def _exact_address(scalar: Scalar) -> str:
    whole = ids.pci_address(scalar.text)
    if whole is not None:
        return whole
    hint = 'write each address in full, such as "0000:86:00.0": force accepts no patterns'
    raise Invalid(f'"{scalar.text}" is no PCI address', hint)


def _vfs_of_pf(scalar: Scalar) -> str:
    pf, mark, numbers = scalar.text.partition("#")
    named = ids.pci_address(pf) or (pf if re.fullmatch(_INTERFACE, pf) else None)
    if named is not None and (not mark or ids.vf_numbers(numbers)):
        return f"{named}{mark}{numbers}"
    hint = 'write its interface or address, such as "ens1f0" or "0000:5e:00.0", with numbers: "ens1f0#0,2-7"'
    raise Invalid(f'"{scalar.text}" names no VFs of a PF', hint)


def _vfio_driver(scalar: Scalar) -> str:
    if re.fullmatch(_DRIVER, scalar.text) and ids.vfio_driver(scalar.text):
        return scalar.text
    hint = "use vfio-pci, or a variant of it for these devices, such as mlx5_vfio_pci"
    raise Invalid(f'"{scalar.text}" is no VFIO driver', hint)


def can_match(pattern: str) -> bool:
    """Return True if a pattern with ``*`` and ``?`` can match a PCI address as sysfs spells it."""
    pattern = re.sub(r"\*+", "*", pattern)  # a long row of stars would be slow to match
    hexa, tail = "0123456789abcdef", (":", "01", "0123456789abcdef", ".", "01234567")
    return any(_fits(pattern, (*(hexa,) * digits, ":", hexa, hexa, *tail)) for digits in range(4, 9))


def _fits(pattern: str, template: tuple[str, ...]) -> bool:
    """Return True if the pattern can match a text whose characters are in the sets of the template."""

    def with_skipped_stars(positions: set[int]) -> set[int]:
        return positions | {here + 1 for here in positions if pattern[here : here + 1] == "*"}

    at = with_skipped_stars({0})
    for allowed in template:
        at = with_skipped_stars(
            {
                here if pattern[here] == "*" else here + 1
                for here in at
                if here < len(pattern) and (pattern[here] in "*?" or pattern[here] in allowed)
            }
        )
    return len(pattern) in at


def _of_no_group(word: Word) -> Word:
    """Return the given path format, extended so that it rejects the device nodes of IOMMU groups.

    Only one process can open an IOMMU group, and group numbers change. A pattern is checked again when device
    nodes match it.
    """

    def read(scalar: Scalar) -> object:
        path = word.read(scalar)
        if nodes.of_groups(scalar.text):
            what = f'"{scalar.text}" names nodes of IOMMU groups, which only one container can use'
            raise Invalid(what, "advertise the devices of the groups by a rule with pci or mdev")
        return path

    return word._replace(read=read)


def path(limit: int, holds_sockets: bool = False) -> Word:
    """Return the format of an absolute path of at most ``limit`` bytes, not counting the root prefix."""
    why = f"its socket names have up to {SOCKET_NAME} bytes" if holds_sockets else "no longer fits"

    def read(scalar: Scalar) -> str:
        text = scalar.text
        if not text.startswith("/") or {".", ".."} & set(text.split("/")) or not text.isprintable():
            raise Invalid(f'"{text}" is not an absolute path', "begin with '/', without '.' and '..'")
        size = len(text.encode())
        if size > limit:
            what = f"the path has {size} bytes; the limit is {limit}: {why}"
            raise Invalid(what, f"choose a path of at most {limit} bytes")
        return text.rstrip("/") or "/"

    return Word("absolute path", read, {"type": "string", "pattern": "^/"})


def _optional_file(scalar: Scalar) -> object:
    return path(4095).read(scalar) if scalar.text else ""


def _listen(scalar: Scalar) -> str:
    import socket  # imported here because few configurations set it

    host, colon, port = scalar.text.rpartition(":")
    if not scalar.text:
        return ""
    address = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    family = socket.AF_INET if address == host else socket.AF_INET6
    try:
        socket.inet_pton(family, address)
        fits = re.fullmatch(r"0|[1-9]\d{0,4}", port, re.ASCII) is not None and int(port) < 1 << 16
    except OSError:
        fits = False
    if colon and fits:
        return scalar.text
    raise Invalid(
        f'"{scalar.text}" is not an IP address with a port',
        "write it such as 127.0.0.1:9481 or [::1]:9481",
    )


def kubelet_name(words: str, part: str, rest: str = "") -> Word:
    """Return the format of a name that the kubelet accepts; with ``rest``, the format of the first part of a
    name, which may be empty.
    """

    def read(scalar: Scalar) -> str:
        fault = naming.find_fault(f"{scalar.text}{rest}") if scalar.text or not rest else None
        if fault is not None:
            raise Invalid(f'the kubelet refuses the {part} "{scalar.text}": {fault.message}', fault.hint)
        return scalar.text

    return Word(words, read)


def _cdi_kind(scalar: Scalar) -> str:
    text, part = scalar.text, "[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
    if re.fullmatch(f"{part}/{part}", text) is None:
        raise Invalid(f'"{text}" is no kind of CDI devices', "write vendor/class, such as nvidia.com/gpu")
    if text.startswith(_OWN_CDI):
        raise Invalid(
            f'"{text}" is reserved: it is what nodeagent itself writes', "use pci or mdev with cdi: true"
        )
    return text


def _filled(scalar: Scalar) -> str:
    if scalar.text.strip() and scalar.text.isprintable():
        return scalar.text
    if not scalar.text.strip():
        raise Invalid("an empty text", "write the text, or leave the entry out")
    odd = next(character for character in scalar.text if not character.isprintable())
    hint = "type the text again: a copied text may contain a special character instead of a blank"
    raise Invalid(f"{scalar.text!a} holds {_called(odd)}", hint)


def _called(character: str) -> str:
    import unicodedata  # imported here because only errors need it

    return unicodedata.name(character, f"U+{ord(character):04X}")


FLAG = Word("true | false", _flag, {"type": "boolean"})

WORDS: Mapping[str, Word] = {
    "text": Word("text", _filled),
    "optional text": Word("text", lambda scalar: scalar.text),
    "vendor id": hexadecimal("vendor id", (4,), "10de"),
    "device id": hexadecimal("device id", (4,), "1eb8"),
    "PCI class": hexadecimal("PCI class", (2, 4, 6), "0300"),
    "subsystem": Word("subsystem", _subsystem),
    "PCI address": Word("PCI address", _exact_address),
    "PCI address pattern": Word("PCI address pattern", _address),
    "VFs of a PF": Word("VFs of a PF", _vfs_of_pf),
    "driver": matching("driver name", _DRIVER, "is not a driver name", "write it such as vfio-pci")._replace(
        json={"type": "string", "pattern": f"^(?:{_DRIVER})$"}
    ),
    "VFIO driver": Word(
        "VFIO driver", _vfio_driver, {"type": "string", "pattern": "^(?:vfio-pci|.+_vfio_pci)$"}
    ),
    "device node": _of_no_group(
        matching("path below /dev", _NODE, "is no path below /dev", "write the full path, such as /dev/kvm")
    ),
    "device nodes": _of_no_group(
        matching(
            "path or pattern below /dev",
            _NODES,
            "is no path or pattern below /dev",
            "write the path, such as /dev/kvm; *, ? and [...] are allowed in the last part: /dev/video*",
        )
    ),
    "mount path": matching(
        "path below /dev",
        rf"{_NODE}|/dev/(?:{_FOLDER})*",
        "is no path below /dev",
        "write a path such as /dev/video0, or a directory that ends with a slash: /dev/cameras/",
    ),
    "permissions": matching(
        "permissions",
        r"(?=[rwm]{1,3}$)(?!.*(.).*\1).+",
        "are no permissions",
        "write r, w and m (mknod), each once, such as rw",
    ),
    "CDI kind": Word("CDI kind", _cdi_kind),
    "resource": kubelet_name("resource name", "name"),
    "domain": kubelet_name("domain", "domain", "/x"),
    "node name": matching(
        "node name", f"(?:{_PLAIN_DOMAIN})?", "is no node name", "write it as 'kubectl get nodes' shows it"
    ),
    "DRA driver": matching(  # also a vendor of CDI, which starts with a letter
        "DNS subdomain",
        r"(?=[a-z].{0,62}$)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*",
        "is no name of a DRA driver",
        "write a lower-case domain of at most 63 characters that starts with a letter, such as example.com",
    ),
    "label": matching(
        "label", f"(?:{_PLAIN_DOMAIN}/)?{_LABEL}", "is no label key", "write it such as example.com/role"
    ),
    "label value": matching(
        "label value", f"(?:{_LABEL})?", "is no label value", "use at most 63 letters, digits, '-_.'"
    ),
    "socket": path(SUN_PATH),
    "directory of sockets": path(SUN_PATH - 1 - SOCKET_NAME, holds_sockets=True),
    "directory": path(4095),
    "optional file": Word("absolute path", _optional_file),
    "address to listen at": Word("IP address:port", _listen),
}
