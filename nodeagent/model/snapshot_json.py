# SPDX-License-Identifier: Apache-2.0
"""A Snapshot as plain data and back, for whoever decides from the daemon's in another process. Pure.

The Host is written as a saved host is (``host_json``), all else as ``plain`` does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nodeagent.base.errors import ConfigError
from nodeagent.model import host_json, plain
from nodeagent.model.host import Host
from nodeagent.model.snapshot import Snapshot

_HOST = "host"


def dump(snapshot: Snapshot) -> dict[str, Any]:
    """The plain data of a Snapshot."""
    rest = plain.dump(replace(snapshot, host=Host()))  # which is the default, and so left out
    return {_HOST: host_json.dump(snapshot.host), **rest}


def load(data: Any) -> Snapshot:
    """The Snapshot of plain data. :raises ConfigError: if it is none."""
    if not isinstance(data, Mapping):
        raise ConfigError("this is no snapshot")
    try:
        rest = plain.load(Snapshot, {key: value for key, value in data.items() if key != _HOST})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the snapshot cannot be read: {error}") from error
    return replace(rest, host=host_json.load(data.get(_HOST)))
