# SPDX-License-Identifier: Apache-2.0
"""Which machine this is, by systemd's machine id: the same over reboots, another one on each machine."""

from __future__ import annotations

import re

from nodeagent.kernel.root import Root

PATH = "/etc/machine-id"
_ID = re.compile(r"[0-9a-f]{32}")


def machine_id(root: Root) -> str:
    """The 32 hexadecimal digits; "" if there are none: a new system has none yet (machine-id(5))."""
    text = (root.text(PATH) or "").lower()
    return text if _ID.fullmatch(text) else ""


def written(text: str) -> str:
    """The machine id that a person wrote, also with dashes or in upper case; "" if it is none."""
    digits = text.strip().replace("-", "").lower()
    return digits if _ID.fullmatch(digits) else ""
