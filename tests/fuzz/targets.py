# SPDX-License-Identifier: Apache-2.0
"""All targets, in the order in which they take turns."""

from __future__ import annotations

from tests.fuzz import kernels, kubelets, records, written
from tests.fuzz.known import KNOWN
from tests.fuzz.running import Target


def everything() -> list[Target]:
    """Each has a name of its own."""
    modules = (written, kernels, kubelets, records)
    found = (each for module in modules for each in module.targets())
    return [each._replace(known=KNOWN.get(each.name, ())) for each in found]
