# SPDX-License-Identifier: Apache-2.0
"""What is known not to be borne yet: by target, what is said, and what it is.

It is counted and told, and is no failure. Whoever mends it takes it out, so that it stays mended.
"""

from __future__ import annotations

KNOWN: dict[str, tuple[tuple[str, str], ...]] = {}
