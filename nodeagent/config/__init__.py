# SPDX-License-Identifier: Apache-2.0
"""Settings: records from which flags, environment variables, files, schema and reference follow.

Use ``config.load``; the other modules do its work. ``settings`` has all sections as records, ``rules`` the
shapes of rules, ``words`` the texts that are accepted. ``sources`` finds files, variables and flags,
``codec`` reads them, ``mdevctl`` and ``vgpu_device_manager`` read files of other tools, ``loading`` does it
all in order.
"""

from __future__ import annotations

from nodeagent.config.loading import check_file, from_values, load, load_candidate, load_one
from nodeagent.config.problems import ConfigErrors, more
from nodeagent.config.settings import (
    BY_KEY,
    SETTINGS,
    Cluster,
    Http,
    Log,
    Setting,
    Settings,
    Timing,
    Value,
    schema,
)
from nodeagent.config.sources import Sources, add_flags, flags_from

__all__ = [
    "BY_KEY",
    "SETTINGS",
    "Cluster",
    "ConfigErrors",
    "Http",
    "Log",
    "Setting",
    "Settings",
    "Sources",
    "Timing",
    "Value",
    "add_flags",
    "check_file",
    "flags_from",
    "from_values",
    "load",
    "load_candidate",
    "load_one",
    "more",
    "schema",
]
