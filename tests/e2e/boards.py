# SPDX-License-Identifier: Apache-2.0
"""Who has functions of which board, by two witnesses: the kubelet, and the processes that run.

A board is one IOMMU group. The kubelet forgets a pod that is deleted by force seconds before its container
ends; the environment of a process in that container still says what it was given. A board has two owners only
if both have it at one moment: a process counts for the time of an answer if it ran before and after it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e import podresources

_VARIABLE = "PCI_RESOURCE_"


@dataclass(frozen=True)
class Life:
    """A process in a container of a pod, and the addresses that the container was given."""

    pid: int
    pod: str
    uid: str
    addresses: frozenset[str]


@dataclass(frozen=True)
class Sight:
    """What was seen at one moment. ``named`` is None while the kubelet does not answer."""

    lives: frozenset[Life]
    named: Mapping[str, frozenset[str]] | None

    def opened(self) -> frozenset[str]:
        """The addresses that a running container has."""
        return frozenset().union(*(life.addresses for life in self.lives))

    def owners(self) -> dict[str, set[str]]:
        """Board → its owners: a running pod by name and uid, one that is only named by its name."""
        found = defaultdict(set)
        for life in self.lives:
            for board in boards(life.addresses):
                found[board].add(f"{life.pod} {life.uid}")
        for pod, addresses in (self.named or {}).items():
            for board in boards(addresses):
                if not any(owner.startswith(f"{pod} ") for owner in found[board]):
                    found[board].add(pod)
        return found

    def shared(self) -> dict[str, set[str]]:
        """Board → owners, where there is more than one: this must never be."""
        return {board: owners for board, owners in self.owners().items() if len(owners) > 1}


def board(address: str) -> str:
    """The address without the function's number."""
    return address.rpartition(".")[0]


def boards(addresses: Iterable[str]) -> set[str]:
    """The boards of these functions."""
    return {board(address) for address in addresses}


def look(kubelet_directory: Path) -> Sight:
    """See who has what now."""
    before = frozenset(lives())
    named = None
    with contextlib.suppress(OSError):
        named = podresources.named(kubelet_directory)
    return Sight(before.intersection(lives()), named)


def lives() -> Iterator[Life]:
    """All processes in containers of our pods."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"E2E_UID=" in (text := path.read_bytes()):
                yield _life(int(path.parent.name), text.decode(errors="replace").split("\0"))


def _life(pid: int, environ: Iterable[str]) -> Life:
    values = dict(line.split("=", 1) for line in environ if "=" in line)
    given = (value.split(",") for name, value in values.items() if name.startswith(_VARIABLE))
    addresses = frozenset(address for each in given for address in each if address)
    return Life(pid, values.get("E2E_POD", ""), values.get("E2E_UID", ""), addresses)
