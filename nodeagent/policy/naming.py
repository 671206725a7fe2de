# SPDX-License-Identifier: Apache-2.0
"""Names: of resources, of the variables that carry their devices, and the right one for a wrong one.

Knows the kubelet's rules for extended resource names (``IsExtendedResourceName`` and
``IsQualifiedName`` in Kubernetes 1.36), the variables that KubeVirt's virt-launcher reads, and the
naming rule of NVIDIA's kubevirt-gpu-device-plugin that many clusters rely on. A name that a person
wrote is checked, never changed; a name made here is repaired until the kubelet takes it.
Knows no files: texts of pci.ids are arguments.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from nodeagent.model.host import Kind
from nodeagent.model.problem import Problem, ProblemCode, wrong

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


DOMAIN_LIMIT = 244  # 253 of a DNS subdomain less the "requests." that a quota puts before the name
NAME_LIMIT = 63

SHOWN = 3  # words that one line names; of more there is a number
ALIKE = 0.6  # of two words, between 0 and 1; less is no likeness
_BEHIND = 0.1  # less alike than the nearest word: what only begins as all others do

UNNAMED_VGPU = "vgpu-without-name"  # the name after the '/' of what no name is known for

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_GO_SPACE = re.compile(r"[\t\n\f\r ]+")  # what \s means in Go's regexp
_FOREIGN = re.compile(r"[^A-Za-z0-9_.]")
_FOREIGN_MDEV = re.compile(r"[^-A-Za-z0-9_.]")
_ENDS = "-_."  # the only characters of a repaired name that may not be at its ends
_ENV_PREFIX = {Kind.MDEV: "MDEV_PCI_RESOURCE"}  # of all other kinds it is <KIND>_RESOURCE


def fault(name: str) -> Problem | None:
    """Why the kubelet would refuse ``name`` as an extended resource, or None."""
    if name.count("/") != 1:
        return _misnamed("it needs exactly one '/'", "write <domain>/<name>, such as example.com/gpu")
    if "kubernetes.io/" in name:
        return _misnamed("domains ending in kubernetes.io are reserved", "use a domain of your own")
    domain, _, own = name.partition("/")
    return _domain_fault(domain) or _own_fault(own)


def refusal(name: str) -> str | None:
    """Why the kubelet would refuse ``name`` and what to do, in one line; None if it would not."""
    refused = fault(name)
    return None if refused is None else f"{refused.what}; {refused.hint}"


def _domain_fault(domain: str) -> Problem | None:
    if domain.startswith("requests."):
        return _misnamed("'requests.' is reserved for quotas", "drop 'requests.' from the domain")
    if len(domain) > DOMAIN_LIMIT:
        return _misnamed(f"its domain has {len(domain)} characters", f"use at most {DOMAIN_LIMIT} characters")
    if _DOMAIN.fullmatch(domain) is None:
        return _misnamed(
            f"{domain!r} is no DNS domain in lower case",
            "use a-z, 0-9, '-' and '.', such as example.com",
        )
    return None


def _own_fault(name: str) -> Problem | None:
    if len(name) > NAME_LIMIT:
        return _misnamed(
            f"the part after '/' has {len(name)} characters", f"use at most {NAME_LIMIT} characters"
        )
    if _NAME.fullmatch(name) is None:
        return _misnamed(
            f"{name!r} is no valid name after the '/'",
            "use A-Z, a-z, 0-9, '-', '_' and '.', with a letter or a digit at both ends",
        )
    return None


def _misnamed(what: str, hint: str) -> Problem:
    return wrong(ProblemCode.RESOURCE_NAME, "", what, hint)


def usb_selector(vendor: str, product: str) -> str:
    """By which the KubeVirt CR names USB devices; PCI functions have vendors and devices of the same form."""
    return f"usb:{vendor}:{product}"


def env_key(kind: Kind, name: str) -> str:
    """The variable that carries the devices of resource ``name`` (KubeVirt ``pkg/util/util.go``).

    Upper case, '/' and '.' become '_', nothing else: '-' stays. KubeVirt reads none for device
    nodes; they get a prefix of their own.
    """
    prefix = _ENV_PREFIX.get(kind, f"{kind.upper()}_RESOURCE")
    return f"{prefix}_{name.upper().replace('/', '_').replace('.', '_')}"


def nvidia_name(text: str) -> str:
    """What NVIDIA's plugin makes of a device's text in pci.ids; may be invalid or empty."""
    upper = "".join(_go_upper(char) for char in text.strip())
    joined = _GO_SPACE.sub("_", upper.replace("/", "_").replace(".", "_"))
    return _FOREIGN.sub("", joined)


def _go_upper(char: str) -> str:
    upper = char.upper()
    return upper if len(upper) == 1 else char


def vendor_domain(vendor_text: str | None, vendor_id: str) -> str:
    """The domain for a vendor: ``Advanced Micro Devices, Inc. [AMD/ATI]`` gives ``amd.com``.

    Takes the text in the first brackets up to '/', else the first word. A vendor that pci.ids does
    not know gives ``pci-<vvvv>.nodeagent``.
    """
    inside, closed, _ = (vendor_text or "").partition("[")[2].partition("]")
    words = (vendor_text or "").split()
    word = inside.partition("/")[0] if closed else (words[0] if words else "")
    label = re.sub(r"[^a-z0-9]", "", word.lower())[:NAME_LIMIT]
    return f"{label}.com" if label else f"pci-{_id(vendor_id)}.nodeagent"


@functools.lru_cache(maxsize=1024)  # many devices are of one kind
def discovered_name(
    style: str,
    prefix: str,
    vendor_id: str,
    device_id: str,
    vendor_text: str | None = None,
    device_text: str | None = None,
    kind: Kind = Kind.PCI,
) -> str:
    """The resource name of a discovered device; never one that the kubelet refuses.

    ``style`` is ``name`` or ``id``; ``prefix`` is a valid domain or "" (then the vendor's). Texts
    are those of pci.ids. For an mdev the text is the content of the type's ``name`` file, and
    ``device_id`` the type's id: case and hyphens are kept, as in NVIDIA's rule for vGPUs.
    """
    domain = prefix or vendor_domain(vendor_text, vendor_id)
    if kind is Kind.MDEV:
        text = device_text if style == "name" else None
        return f"{domain}/{_repaired(_mdev_name(text or ''), _mdev_name(device_id))}"
    if style == "id":
        return f"{domain}/{_id(vendor_id)}_{_id(device_id)}"
    return f"{domain}/{_repaired(nvidia_name(device_text or ''), _id(device_id))}"


def _mdev_name(text: str) -> str:
    return _FOREIGN_MDEV.sub("", _GO_SPACE.sub("_", text.strip()))


def _id(text: str) -> str:
    """A hexadecimal id as part of a name; anything else a broken device may report is cut down."""
    return re.sub(r"[^a-z0-9]", "", text.lower())[:8] or "unknown"


def _repaired(name: str, otherwise: str) -> str:
    """``name`` trimmed and cut until it is valid, or ``otherwise``, or ``unknown``."""
    trimmed = name.strip(_ENDS) or otherwise.strip(_ENDS) or "unknown"
    if len(trimmed) <= NAME_LIMIT:
        return trimmed
    import hashlib  # here: it loads OpenSSL, and hardly any name is too long

    return f"{trimmed[:54]}_{hashlib.sha256(trimmed.encode()).hexdigest()[:8]}"


def type_called(name: str) -> str:
    """A type's id or name as it is compared: byte for byte, blanks are underscores, the ends do not count.

    KubeVirt does the same (getMdevTypeName in its device manager), but keeps an underscore at the end.
    """
    return name.strip().replace(" ", "_").strip("_")


@functools.lru_cache(maxsize=1024)  # many devices are of one type
def type_names(type_id: str | None, name: str | None) -> frozenset[str]:
    """All that a type is called: by its id, and by its name if it has one; what is not known has none."""
    numbered = vgpu_type_id(type_id) if type_id is not None and type_id.isdecimal() else None
    return frozenset(type_called(each) for each in (type_id, numbered, name) if each is not None)


def vgpu_type_id(number: str) -> str:
    """NVIDIA's vendor driver numbers its types as its mdev types are: nvidia-222 is its type 222."""
    return f"nvidia-{number}"


def like(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """The words that are most like it, at most three, the nearest first; none that is far behind that one."""
    import difflib  # here: needed for mistakes only, and the start is counted in milliseconds

    by_lower, wanted = {each.lower(): each for each in known}, word.lower()
    found = difflib.get_close_matches(wanted, by_lower, SHOWN, ALIKE)
    ratios = {each: difflib.SequenceMatcher(None, each, wanted).ratio() for each in found}
    return tuple(by_lower[each] for each, ratio in ratios.items() if ratio > max(ratios.values()) - _BEHIND)


def nearest(word: str, known: Iterable[str], before: str = "known here:") -> str:
    """A hint that offers the nearest right words, or else, with what is said ``before``, some of them."""
    words = list(known)
    close = like(word, words)
    if not close:
        return f"{before} {few(words)}"
    quoted = " or ".join(f'"{each}"' for each in close)
    return f"did you mean {quoted}?" + (f" ({len(words)} in all)" if len(words) > len(close) else "")


def few(words: Sequence[str], most: int = SHOWN) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(words[:most])}{more}"
