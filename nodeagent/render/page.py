# SPDX-License-Identifier: Apache-2.0
"""The status page: one document with its style and its script inside, and the policy that allows these alone.

The script renders the same JSON that ``nodeagent status -o json`` prints, as it comes by server-sent events.
Nothing is fetched from anywhere else, and nothing of a document is taken for markup.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

_PARTS = Path(__file__).with_name("page_parts")


class Page(NamedTuple):
    """The document, and its Content-Security-Policy."""

    html: bytes
    policy: str


@cache
def load() -> Page:
    """The page; reads three files once. :raises OSError: if one is missing."""
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
    """The source expression that allows this very text (CSP 3)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
