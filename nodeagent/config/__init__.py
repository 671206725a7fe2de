# SPDX-License-Identifier: Apache-2.0
"""Settings: one table feeds flags, environment, files, schema and reference.

Use ``config.load``; the other modules do its work: ``table`` lists the settings, ``scalars``, ``shapes`` and
``selectors`` describe their values, ``sources`` and ``reading`` read files, variables and flags, ``mdevctl``
and ``vgpu_device_manager`` read files of other tools, ``loading`` does all of that in order.
"""

from __future__ import annotations

from nodeagent.config.loading import again, check_file, instead, load, load_one
from nodeagent.config.problems import ConfigErrors, more
from nodeagent.config.records import Cdi, Http, Kubelet, Log, Settings, Status, Timing, Value
from nodeagent.config.sources import Sources, add_flags, flags_from
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
    "instead",
    "load",
    "load_one",
    "more",
    "schema",
]
