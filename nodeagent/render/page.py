# SPDX-License-Identifier: Apache-2.0
"""The status page: one HTML document that contains its style and script, and a policy that allows only these.

The script shows the JSON of ``nodeagent status -o json``, which it gets by server-sent events. The page loads
no other files, and treats no part of the JSON as markup.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

_PARTS = Path(__file__).with_name("page_parts")


class Page(NamedTuple):
    """The HTML document and its Content-Security-Policy."""

    html: bytes
    policy: str


@cache
def load() -> Page:
    """Return the page, made of three files that are read once. :raises OSError: if a file is missing."""
    style, script = ((_PARTS / name).read_text() for name in ("page.css", "page.js"))
    html = (_PARTS / "page.html").read_text().replace("/*style*/", style).replace("/*script*/", script)
    return Page(html.encode(), _policy(style, script))


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {_hash(script)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hash(text: str) -> str:
    """The source expression of a policy that allows exactly this text (CSP 3)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
