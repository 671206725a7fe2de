# SPDX-License-Identifier: Apache-2.0
"""systemd's machine id: the same over reboots, another one on each machine (machine-id(5))."""

from __future__ import annotations

import re

from nodeagent.kernel.root import Root

_PATH = "/etc/machine-id"
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")


def read_machine_id(root: Root) -> str:
    """Return its 32 hexadecimal digits; "" if there are none: a new system has none yet."""
    text = (root.text(_PATH) or "").lower()
    return text if _MACHINE_ID.fullmatch(text) else ""


def parse_machine_id(text: str) -> str:
    """Return the machine id that an operator wrote, also with dashes or in upper case; "" if it is none."""
    digits = text.strip().replace("-", "").lower()
    return digits if _MACHINE_ID.fullmatch(digits) else ""
