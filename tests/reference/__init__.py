# SPDX-License-Identifier: Apache-2.0
"""The generated parts of the documentation: made from the program, and compared with it by the tests here."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
RENEW = "run: python -m tests.reference"
