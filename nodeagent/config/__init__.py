# SPDX-License-Identifier: Apache-2.0
"""Settings: one table feeds flags, environment, files, schema and reference.

Use ``settings.load``; the rest of the package is how it is done: ``table`` (what there is), ``words``,
``shapes``, ``selectors`` (what values look like), ``document`` (strict YAML), ``sources`` (where values
come from), ``reading`` (checks with places), ``loading`` (who wins), ``building`` (the result, ``tree``).
"""

from __future__ import annotations

from nodeagent.config.flags import add_flags, flags_from
from nodeagent.config.loading import check_file, load
from nodeagent.config.problems import ConfigErrors
from nodeagent.config.records import Kubelet, Log, Node, Settings, Timing, Value
from nodeagent.config.table import schema

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
