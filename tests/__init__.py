# SPDX-License-Identifier: Apache-2.0
"""The tests; ``docs/testing.md`` lists their tiers."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]  # of the repository
