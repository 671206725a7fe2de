# SPDX-License-Identifier: Apache-2.0
"""The own drivers of the functions that we bind, on disk: what gives them back after a restart.

Below /run, since drivers and overrides end with the boot as well. It is there only while there is something
to give back: a daemon that starts looks whether it is, and loads what changes the host only then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from nodeagent.base import files
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import looked

PATH = "/run/nodeagent/drivers.json"
_HINT = "without it the functions would not get their own drivers back"


def read(path: str) -> dict[str, str]:
    """Function → its own driver, "" for none; nothing without a readable file.

    :raises KernelRefused: if nothing can be read at present.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        looked(error)
        return {}
    except (ValueError, RecursionError):
        return {}
    pairs = document.items() if isinstance(document, dict) else ()
    return {address: driver for address, driver in pairs if isinstance(driver, str)}


def write(path: str, drivers: Mapping[str, str]) -> None:
    """Replace the file at once and whole; remove it if there is nothing to give back.

    :raises KernelRefused: if it cannot be written.
    """
    if drivers:
        files.put(path, json.dumps(dict(drivers), indent=1), _HINT)
        return
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise KernelRefused(f"{path} cannot be removed: {error.strerror}", _HINT, path=path) from error
