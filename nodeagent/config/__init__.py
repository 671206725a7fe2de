# SPDX-License-Identifier: Apache-2.0
"""Settings: one table feeds flags, environment, files, schema and reference.

Use ``config.load``; the rest of the package is how it is done: ``table`` (what there is), ``scalars``,
``shapes``, ``selectors`` (what values look like), ``reader`` (what was written, and who wins), ``imports``
(files of other tools), ``loading`` (all of that in order, and the records that are made of it).
"""

from __future__ import annotations

from nodeagent.config.loading import again, check_file, load
from nodeagent.config.problems import ConfigErrors, more
from nodeagent.config.reader.sources import Sources, add_flags, flags_from
from nodeagent.config.records import Cdi, Http, Kubelet, Log, Settings, Status, Timing, Value
from nodeagent.config.table import schema

__all__ = [
    "Cdi",
    "ConfigErrors",
    "Http",
    "Kubelet",
    "Log",
    "Settings",
    "Sources",
    "Status",
    "Timing",
    "Value",
    "add_flags",
    "again",
    "check_file",
    "flags_from",
    "load",
    "more",
    "schema",
]
