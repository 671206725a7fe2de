# SPDX-License-Identifier: Apache-2.0
"""Settings: one table feeds flags, environment, files, schema and reference.

Use ``settings.load``; the rest of the package is how it is done: ``table`` (what there is), ``words``,
``shapes``, ``selectors`` (what values look like), ``document`` (strict YAML), ``sources`` (where values
come from), ``reading`` (checks with places), ``loading`` (who wins), ``building`` (the result, ``tree``).
"""

from __future__ import annotations

from nodeagent.settings.flags import add_flags, flags_from
from nodeagent.settings.loading import check_file, load
from nodeagent.settings.problems import ConfigErrors
from nodeagent.settings.table import schema
from nodeagent.settings.tree import Kubelet, Log, Node, Settings, Timing, Value

__all__ = [
    "ConfigErrors",
    "Kubelet",
    "Log",
    "Node",
    "Settings",
    "Timing",
    "Value",
    "add_flags",
    "check_file",
    "flags_from",
    "load",
    "schema",
]
