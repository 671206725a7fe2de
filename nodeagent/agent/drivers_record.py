# SPDX-License-Identifier: Apache-2.0
"""The own drivers of the functions that we bind, and what was asked for by hand, on disk.

The PFs whose ``sriov_drivers_autoprobe`` we have switched off are there as well.
Below /run, since drivers and overrides end with the boot as well. It is there only while there is something
to give back: a daemon that starts looks whether it is, and loads what changes the host only then. Of a
damaged one nothing is believed: what is bound stays so, as if an operator had bound it. Both are in one file,
for a crash between two would have something bound that nobody has asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from nodeagent.base import log
from nodeagent.base.files import StateFile
from nodeagent.model import plain
from nodeagent.model.ledger import Asked, Ledger

PATH = "/run/nodeagent/drivers.json"


class Record(NamedTuple):
    """What of a Ledger is on record here, by the same names."""

    drivers: Mapping[str, str] = MappingProxyType({})
    asked: Mapping[str, Asked] = MappingProxyType({})
    unprobed: frozenset[str] = frozenset()


def of(ledger: Ledger) -> Record:
    """What of it is to be on record."""
    return Record(ledger.drivers, ledger.asked, ledger.unprobed)


FILE = StateFile(
    Record(),
    partial(plain.load, Record),
    plain.dump,
    "without it the functions would not get their own drivers back",
    log.DRIVERS_RECORD_BROKEN,
    mode=0o644,
)
