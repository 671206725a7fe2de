# SPDX-License-Identifier: Apache-2.0
"""All targets, in the order in which they take turns."""

from __future__ import annotations

from tests.fuzz import frames, kernels, kubelets, records, written
from tests.fuzz.running import Target


def everything() -> list[Target]:
    """Each has a name of its own."""
    return [each for module in (written, kernels, kubelets, frames, records) for each in module.targets()]
