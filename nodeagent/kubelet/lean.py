# SPDX-License-Identifier: Apache-2.0
"""Loads betterproto2 without the 1.7 MiB and 10 ms that the question for its own version costs.

betterproto2 0.10 asks importlib.metadata for one word while it is imported, and that module brings a reader
of mails and one of archives into a process that lives for months. It is given the word from the name of its
``dist-info`` directory instead. Where that does not work it is imported as always, by whoever needs it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_METADATA = "importlib.metadata"


class Versions(ModuleType):
    """Stands in for importlib.metadata while one package is imported."""

    def version(self, package: str) -> str:
        """The version of an installed package. :raises ImportError: if its directory does not tell."""
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            for directory in Path(spec.origin).parent.parent.glob(f"{package}-*.dist-info"):
                return directory.stem.partition("-")[2]
        raise ImportError(f"no version of {package} is to be seen")


def load() -> None:
    """Import betterproto2; nothing is left of the stand-in afterwards."""
    if _METADATA in sys.modules or "betterproto2" in sys.modules:
        return
    sys.modules[_METADATA] = Versions(_METADATA)
    try:
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module("betterproto2")
    finally:
        del sys.modules[_METADATA]
