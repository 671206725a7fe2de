# SPDX-License-Identifier: Apache-2.0
"""The record of the prepared claims on disk: one file for each claim. All functions block.

Preparing a claim takes the same time however many claims are prepared, and a damaged file affects one claim.
``agent.core`` loads the record before the first device list, ``claims`` writes it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from nodeagent.base import files, hints, log
from nodeagent.base.errors import KernelRefused
from nodeagent.base.state import ASIDE, CLAIMS, WRONG
from nodeagent.model import plain
from nodeagent.model.claim import Claim

_HINT = "without it the devices of the claim would count as free after a restart"


def load(prefix: str) -> dict[str, Claim]:
    """Return the recorded claims by UID; a damaged file is renamed and logged.

    :raises KernelRefused: if the record cannot be read at present.
    """
    directory, found = _directory(prefix), dict[str, Claim]()
    try:
        for path in sorted(directory.iterdir()):
            if path.suffix == ".json":
                text = files.read_regular(str(path))
                try:
                    claim = plain.load(Claim, json.loads(text))
                except WRONG:
                    path.replace(f"{path}{ASIDE}")
                    log.event(log.STATE_DAMAGED, error=f"{path} is damaged; it is kept as {path}{ASIDE}")
                else:
                    found[claim.ref.uid] = claim
    except (FileNotFoundError, NotADirectoryError):
        return found
    except OSError as error:
        what = f"{directory}: the record of claims cannot be read: {hints.strerror(error)}"
        raise KernelRefused(what, hints.for_errno(error, "read"), path=str(directory)) from error
    return found


def save(prefix: str, claim: Claim) -> None:
    """Write the file of the claim. :raises KernelRefused: if that fails."""
    files.put(_file(prefix, claim.ref.uid), json.dumps(plain.dump(claim)), _HINT, mode=0o600)


def remove(prefix: str, uid: str) -> None:
    """Remove the file of a claim, if it exists. :raises OSError: if that fails."""
    _file(prefix, uid).unlink(missing_ok=True)


def _directory(prefix: str) -> Path:
    return Path(f"{prefix.rstrip('/')}{CLAIMS}")


def _file(prefix: str, uid: str) -> Path:
    return _directory(prefix) / f"{os.path.basename(uid)}.json"
