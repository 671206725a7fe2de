# SPDX-License-Identifier: Apache-2.0
"""Finds the network interfaces that the host uses: with an address, with a route, or part of another
interface.

Interfaces are those of ``/sys/class/net``, which shows the network namespace in which that sysfs was mounted.
Addresses and routes are those of ``/proc/1/net``, and are used only if it lists the same interfaces: in a pod
it may show another namespace. The link state (``operstate``) does not indicate use. For IPv4, the kernel
lists the routes of each interface, but the addresses without their interfaces. Each address normally adds a
route, so an interface without routes has no address, unless some address is not covered by any route.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import chain
from typing import NamedTuple, TypeVar

from nodeagent.kernel.root import Root
from nodeagent.model.host import HostUse, HostUses, UseKind

T = TypeVar("T")

INTERFACES = "/sys/class/net"
NET = "/proc/1/net"
DEFAULT = "default route"
_UP = 1  # IFF_UP in include/uapi/linux/if.h
_REJECT, _LOCAL = 0x200, 0x80000000  # RTF_REJECT, RTF_LOCAL in include/uapi/linux/route.h, ipv6_route.h
_LINK_LOCAL, _MULTICAST = IPv6Network("fe80::/10"), IPv6Network("ff00::/8")
_LOOPBACK = IPv4Network("127.0.0.0/8")
_OWN_ADDRESS = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


class Networks(NamedTuple):
    """A route or address of each interface as text; IPv4 addresses whose interface is unknown."""

    used: Mapping[str, str]
    unassigned: tuple[str, ...]


def read_networks(root: Root) -> Networks | None:
    """Return the interfaces with addresses and routes; None if sysfs shows another network namespace."""
    # interfaces of pods are created and deleted between two reads
    if not any(_same_namespace(root) for _ in range(2)):
        return None
    routes = tuple(_parse_ipv4_routes(root.text(f"{NET}/route") or ""))
    used: dict[str, str] = {}
    leading: Iterable[tuple[str, IPv4Network | IPv6Network]] = chain(
        routes, _parse_ipv6_routes(root.text(f"{NET}/ipv6_route") or "")
    )
    for name, network in leading:
        if network.prefixlen == 0 or name not in used:
            used[name] = DEFAULT if network.prefixlen == 0 else f"route to {network}"
    for name, address in _parse_ipv6_addresses(root.text(f"{NET}/if_inet6") or ""):
        used.setdefault(name, f"address {address}")
    own_addresses = {IPv4Address(text) for text in _OWN_ADDRESS.findall(root.text(f"{NET}/fib_trie") or "")}
    reached = [network for _, network in routes if network.prefixlen] + [_LOOPBACK]
    unassigned = sorted(address for address in own_addresses if not any(address in each for each in reached))
    return Networks(used, tuple(map(str, unassigned)))


def find_uses(root: Root, names: Iterable[str], networks: Networks | None) -> HostUses:
    """Return the uses of these interfaces by the host."""
    found: list[HostUse] = []
    unseen: list[str] = []
    for name in names:
        use = _use_of(root, name, networks)
        if use is not None:
            found.append(HostUse(UseKind.NETWORK, name, use))
        elif not _is_up(root, name):
            continue
        elif networks is None:
            unseen.append(f"addresses and routes of {name}: {NET} is that of another network namespace")
        elif networks.unassigned:
            unseen.append(f"which interface has the address {networks.unassigned[0]}")
    return HostUses(tuple(found), tuple(dict.fromkeys(unseen)))


def has_hidden_interface(root: Root, function: str) -> bool:
    """Return True if the function has an interface in another network namespace, which this sysfs does not
    show.
    """
    places = [function, *(f"{function}/{name}" for name in root.names(function) if name.startswith("virtio"))]
    return any(root.exists(f"{place}/net") and not root.names(f"{place}/net") for place in places)


def _use_of(root: Root, name: str, networks: Networks | None) -> str | None:
    """Return the use of an interface; a bridge or bond above it comes first, because it has the addresses."""
    used = networks.used if networks is not None else {}
    above = [each[6:] for each in root.names(f"{INTERFACES}/{name}") if each.startswith("upper_")]
    master = root.link(f"{INTERFACES}/{name}/master")
    for upper in dict.fromkeys([*([master] if master else []), *above]):
        return f"part of {upper}" + (f", {used[upper]}" if upper in used else "")
    return used.get(name) if _is_up(root, name) else None


def _is_up(root: Root, name: str) -> bool:
    flags = root.text(f"{INTERFACES}/{name}/flags")
    try:
        return flags is None or bool(int(flags, 16) & _UP)
    except ValueError:
        return True


def _same_namespace(root: Root) -> bool:
    lines = (root.text(f"{NET}/dev") or "").splitlines()[2:]
    named = {line.partition(":")[0].strip() for line in lines}
    shown = {name for name in root.names(INTERFACES) if root.target(f"{INTERFACES}/{name}") is not None}
    return bool(named) and named == shown


def _parse_ipv4_routes(text: str) -> Iterator[tuple[str, IPv4Network]]:
    """Yield routes of /proc/net/route: name, destination, gateway, flags, …, mask in column 7; in hex."""

    def route(words: Sequence[str]) -> tuple[str, IPv4Network] | None:
        network = IPv4Network((_ipv4(words[1]), str(IPv4Address(_ipv4(words[7])))), strict=False)
        return None if int(words[3], 16) & _REJECT else (words[0], network)

    return _parse_lines(text.splitlines()[1:], route)


def _ipv4(text: str) -> bytes:
    return int(text, 16).to_bytes(4, sys.byteorder)


def _parse_ipv6_routes(text: str) -> Iterator[tuple[str, IPv6Network]]:
    """Yield routes of /proc/net/ipv6_route: destination and prefix length first, flags and name last."""

    def route(words: Sequence[str]) -> tuple[str, IPv6Network] | None:
        network = IPv6Network((bytes.fromhex(words[0]), int(words[1], 16)), strict=False)
        nobodys = network.subnet_of(_LINK_LOCAL) or network.subnet_of(_MULTICAST)
        return None if nobodys or int(words[8], 16) & (_REJECT | _LOCAL) else (words[9], network)

    return _parse_lines(text.splitlines(), route)


def _parse_ipv6_addresses(text: str) -> Iterator[tuple[str, IPv6Address]]:
    """Yield addresses of /proc/net/if_inet6, except link-local ones, which every active interface has."""

    def address_of(words: Sequence[str]) -> tuple[str, IPv6Address] | None:
        address = IPv6Address(bytes.fromhex(words[0]))
        return None if address in _LINK_LOCAL else (words[5], address)

    return _parse_lines(text.splitlines(), address_of)


def _parse_lines(lines: Iterable[str], parse: Callable[[Sequence[str]], T | None]) -> Iterator[T]:
    """Yield the value of each line; lines in another format are skipped."""
    for line in lines:
        try:
            said = parse(line.split())
        except (ValueError, IndexError, OverflowError):
            continue
        if said is not None:
            yield said
