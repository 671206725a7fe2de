# SPDX-License-Identifier: Apache-2.0
"""The settings of the daemon: flags, environment variables, configuration files, JSON schema, reference page.

Other packages call ``config.load``. ``settings`` defines every setting as a field of a record, ``rules``
the structure of resource rules, ``words`` the accepted text formats. ``sources`` collects files, variables
and flags; ``codec`` parses them; ``mdevctl`` and ``vgpu_device_manager`` import files of the tools with these
names; ``loading`` runs all steps in order.
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
