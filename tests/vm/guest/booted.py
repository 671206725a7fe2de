# SPDX-License-Identifier: Apache-2.0
"""A guest that has booted from a disk of its own: who has its functions, who had them, and one verb."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.vm.guest import pci

SLOT = 0x10  # what is removed and found again
_SLOTS = (0x10, 0x11, 0x14, 0x15, 0x18, 0x19)
_PROBED = re.compile(r"really_probe: probing driver (\S+) with device")
_ADDRESS = re.compile(
    r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b"
)  # behind it, or before it on newer kernels
_VERB = Path("/job/verb")


def _drivers() -> dict[str, str | None]:
    """Function → its driver, by slot and number: addresses are of no use to who looks from outside."""
    return {
        f"{slot:x}.{number}": pci.driver(address)
        for slot in _SLOTS
        for number, address in enumerate(pci.below(slot))
    }


def _tried() -> dict[str, list[str]]:
    """Function → the drivers that the kernel has tried on it since its start, in order."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    lines = [(_ADDRESS.search(line), _PROBED.search(line)) for line in log.splitlines()]
    found = [(address[0], driver[1]) for address, driver in lines if address and driver]
    return {
        f"{slot:x}.{number}": [driver for device, driver in found if device == address]
        for slot in _SLOTS
        for number, address in enumerate(pci.below(slot))
    }


def _find_again(slot: int) -> None:
    """Take off the bus what is below a port, and find it again."""
    for address in pci.below(slot):
        pci.remove(address)
    pci.rescan()
    subprocess.run(["udevadm", "settle"], check=True)


def _said() -> dict[str, Any]:
    """What the verb answers; its functions are named by the slots above them."""
    words = [pci.below(int(each[1:], 16))[0] if each.startswith("@") else each for each in _verb()]
    command = [sys.executable, "-m", "nodeagent", *words, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, flush=True)
    return {"code": done.returncode, "answer": json.loads(done.stdout or "null")}


def _verb() -> list[str]:
    return _VERB.read_text().split()


def main(results: Path) -> None:
    """Leave all of it."""
    found: dict[str, Any] = {"drivers": _drivers(), "tried": _tried()}
    _find_again(SLOT)
    found["again"] = _drivers()
    found["said"] = _said() if _verb() else None
    (results / "booted.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
