# SPDX-License-Identifier: Apache-2.0
"""Names of resources and of the environment variables with their devices, and suggestions for wrong names.

Implements the kubelet's rules for extended resource names (``IsExtendedResourceName`` and ``IsQualifiedName``
in Kubernetes 1.36), the variables that KubeVirt's virt-launcher reads, and the naming rule of NVIDIA's
kubevirt-gpu-device-plugin that many clusters rely on. A configured name is checked, never changed; a
generated name is repaired until the kubelet accepts it. This module reads no file: callers pass the names
from pci.ids as arguments.
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

SHOWN = 3  # words in one line; others are counted
ALIKE = 0.6  # the least likeness of two words, between 0 and 1
_LESS_ALIKE = 0.1  # a word that is so much less alike than the nearest one is not suggested

UNNAMED_VGPU = "vgpu-without-name"  # the name after the '/' of a vGPU type without a known name

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_GO_SPACE = re.compile(r"[\t\n\f\r ]+")  # what \s means in Go's regexp
_FOREIGN = re.compile(r"[^A-Za-z0-9_.]")
_FOREIGN_MDEV = re.compile(r"[^-A-Za-z0-9_.]")
_ENDS = "-_."  # the only characters of a repaired name that may not be at its ends
_ENV_PREFIX = {Kind.MDEV: "MDEV_PCI_RESOURCE"}  # of all other kinds it is <KIND>_RESOURCE


def find_fault(name: str) -> Problem | None:
    """Why the kubelet would refuse the name of an extended resource; None if it accepts the name."""
    if name.count("/") != 1:
        return _misnamed("it needs exactly one '/'", "write <domain>/<name>, such as example.com/gpu")
    if "kubernetes.io/" in name:
        return _misnamed("domains ending in kubernetes.io are reserved", "use a domain of your own")
    domain, _, own = name.partition("/")
    return _find_domain_fault(domain) or _find_name_fault(own)


def describe_fault(name: str) -> str | None:
    """Why the kubelet would refuse a resource name, and the fix, in one line; None if it accepts it."""
    refused = find_fault(name)
    return None if refused is None else f"{refused.message}; {refused.hint}"


def _find_domain_fault(domain: str) -> Problem | None:
    if domain.startswith("requests."):
        return _misnamed("'requests.' is reserved for quotas", "drop 'requests.' from the domain")
    if len(domain) > DOMAIN_LIMIT:
        return _misnamed(f"its domain has {len(domain)} characters", f"use at most {DOMAIN_LIMIT} characters")
    if _DOMAIN.fullmatch(domain) is None:
        return _misnamed(
            f"{domain!r} is not a DNS domain in lower case",
            "use a-z, 0-9, '-' and '.', such as example.com",
        )
    return None


def _find_name_fault(name: str) -> Problem | None:
    if len(name) > NAME_LIMIT:
        return _misnamed(
            f"the part after '/' has {len(name)} characters", f"use at most {NAME_LIMIT} characters"
        )
    if _NAME.fullmatch(name) is None:
        return _misnamed(
            f"{name!r} is not a valid name after the '/'",
            "use A-Z, a-z, 0-9, '-', '_' and '.', with a letter or a digit at both ends",
        )
    return None


def _misnamed(text: str, hint: str) -> Problem:
    return wrong(ProblemCode.RESOURCE_NAME, "", text, hint)


def usb_selector(vendor: str, product: str) -> str:
    """The key of a USB model (vendor and product); the prefix distinguishes it from ids of PCI functions."""
    return f"usb:{vendor}:{product}"


def env_key(kind: Kind, name: str) -> str:
    """The name of the environment variable with the devices of the resource (KubeVirt ``pkg/util/util.go``).

    The resource name is written in upper case, with '_' for '/' and '.'; '-' is kept. KubeVirt reads no
    variables of device nodes, which therefore have a different prefix.
    """
    prefix = _ENV_PREFIX.get(kind, f"{kind.upper()}_RESOURCE")
    return f"{prefix}_{name.upper().replace('/', '_').replace('.', '_')}"


def nvidia_name(text: str) -> str:
    """The resource name that NVIDIA's plugin derives from a name in pci.ids; it may be invalid or empty."""
    upper = "".join(_go_upper(char) for char in text.strip())
    joined = _GO_SPACE.sub("_", upper.replace("/", "_").replace(".", "_"))
    return _FOREIGN.sub("", joined)


def _go_upper(char: str) -> str:
    upper = char.upper()
    return upper if len(upper) == 1 else char


def vendor_domain(vendor_text: str | None, vendor_id: str) -> str:
    """The domain for resources of a vendor: ``amd.com`` for ``Advanced Micro Devices, Inc. [AMD/ATI]``.

    The domain is made from the text in the first brackets up to '/', or else from the first word; for a
    vendor that is not in pci.ids it is ``pci-<vvvv>.nodeagent``.
    """
    inside, closed, _ = (vendor_text or "").partition("[")[2].partition("]")
    words = (vendor_text or "").split()
    word = inside.partition("/")[0] if closed else (words[0] if words else "")
    label = re.sub(r"[^a-z0-9]", "", word.lower())[:NAME_LIMIT]
    return f"{label}.com" if label else f"pci-{_id(vendor_id)}.nodeagent"


@functools.lru_cache(maxsize=1024)  # many devices have the same ids
def discovered_name(
    style: str,
    prefix: str,
    vendor_id: str,
    device_id: str,
    vendor_text: str | None = None,
    device_text: str | None = None,
    kind: Kind = Kind.PCI,
) -> str:
    """The resource name of a discovered device; the kubelet accepts each of these names.

    ``style`` is ``name`` or ``id``; ``prefix`` is a valid domain, or "" for the domain of the vendor.
    ``text`` is the device's name in pci.ids. For an mdev, ``text`` is the name of its type and ``device_id``
    the id of its type: case and hyphens are kept, as NVIDIA's plugin does for vGPUs.
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
    """A hexadecimal id as part of a resource name; other characters (from a broken device) are removed."""
    return re.sub(r"[^a-z0-9]", "", text.lower())[:8] or "unknown"


def _repaired(name: str, otherwise: str) -> str:
    """The name, shortened until the kubelet accepts it; else ``otherwise``, or "unknown"."""
    trimmed = name.strip(_ENDS) or otherwise.strip(_ENDS) or "unknown"
    if len(trimmed) <= NAME_LIMIT:
        return trimmed
    import hashlib  # here: it loads OpenSSL, and hardly any name is too long

    return f"{trimmed[:54]}_{hashlib.sha256(trimmed.encode()).hexdigest()[:8]}"


def normalize_type(name: str) -> str:
    """The id or name of an mdev type for comparisons: without blanks at the ends, and with '_' for others.

    KubeVirt does the same (getMdevTypeName in its device manager), but keeps an underscore at the end.
    """
    return name.strip().replace(" ", "_").strip("_")


@functools.lru_cache(maxsize=1024)  # many devices have the same type
def type_names(type_id: str | None, name: str | None) -> frozenset[str]:
    """The texts that select an mdev type in the configuration: its id, and its name if the name is known."""
    numbered = vgpu_type_id(type_id) if type_id is not None and type_id.isdecimal() else None
    return frozenset(normalize_type(each) for each in (type_id, numbered, name) if each is not None)


def vgpu_type_id(number: str) -> str:
    """The mdev type id of a type number of NVIDIA's vendor driver: nvidia-222 for 222."""
    return f"nvidia-{number}"


def find_similar(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """The known words that are most similar to ``word``: at most three, the most similar one first."""
    import difflib  # here: needed for mistakes only, and the start is counted in milliseconds

    by_lower, wanted = {each.lower(): each for each in known}, word.lower()
    found = difflib.get_close_matches(wanted, by_lower, SHOWN, ALIKE)
    ratios = {each: difflib.SequenceMatcher(None, each, wanted).ratio() for each in found}
    return tuple(
        by_lower[each] for each, ratio in ratios.items() if ratio > max(ratios.values()) - _LESS_ALIKE
    )


def suggest(word: str, known: Iterable[str], before: str = "known here:") -> str:
    """A hint with the most similar valid words; if none is similar, ``before`` and some valid words."""
    words = list(known)
    close = find_similar(word, words)
    if not close:
        return f"{before} {shorten(words)}"
    quoted = " or ".join(f'"{each}"' for each in close)
    return f"did you mean {quoted}?" + (f" ({len(words)} are known)" if len(words) > len(close) else "")


def shorten(words: Sequence[str], most: int = SHOWN) -> str:
    """A list of words as a text: the first ones, and the number of the others."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return f"{', '.join(words[:most])}{more}"
