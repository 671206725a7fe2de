# SPDX-License-Identifier: Apache-2.0
"""A guest that is only asked whether it is ready, and whether VFIO agrees: it opens a device for that."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.vm.guest import pci, vfio

SLOT = 0x10  # of the port above a card that is alone in its group


def checked() -> dict[str, Any]:
    """What ``nodeagent check`` says, by what was looked at."""
    command = [sys.executable, "-m", "nodeagent", "check", "-o", "json"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return {line["check"]: line for line in json.loads(told.stdout)["lines"]}


def given() -> str:
    """ "yes" if VFIO gives the card away, else the error's name."""
    (address,) = pci.below(SLOT)
    try:
        pci.bind(address, pci.VFIO)
        with vfio.held(address, pci.group(address)):
            return "yes"
    except AssertionError:
        return "not bound"
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def main(results: Path) -> None:
    """Leave both."""
    pci.modprobe("vfio-pci")
    (results / "ready.json").write_text(json.dumps({"lines": checked(), "given": given()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
