# SPDX-License-Identifier: Apache-2.0
"""What files of other tools want of mdevs: definitions of mdevctl, a configuration of vgpu-device-manager.

Read whenever the settings are, below the root prefix. A broken definition is a warning, since mdevctl keeps
one file for each device; a broken configuration is an error, since nothing would be left of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nodeagent.base.errors import ConfigError
from nodeagent.config.imports import mdevctl
from nodeagent.config.imports.mdevctl import Definitions
from nodeagent.config.reader import sources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.config.problems import Problems
    from nodeagent.model.desired import CardTypes

LABEL = "nvidia.com/vgpu.config"
"""The label by which vgpu-device-manager chooses a node's configuration."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The definitions and the lists for cards that the settings ask for."""

    definitions: Definitions = field(default_factory=Definitions)
    cards: tuple[CardTypes, ...] = ()


def read(root_prefix: str, values: Mapping[str, Any], problems: Problems, warnings: list[str]) -> Imported:
    """What the files hold that the settings name."""
    directory = sources.below(root_prefix, mdevctl.DIRECTORY)
    definitions = mdevctl.read(directory, warnings) if values["mdevs.mdevctl"] else Definitions()
    return Imported(definitions, _cards(root_prefix, values, problems, warnings))


def idle(values: Mapping[str, Any]) -> list[str]:
    """A warning for each source of wishes that nodeagent has no leave to carry out."""
    asked = [key for key in ("mdevs.mdevctl", "mdevs.vgpuConfigFile") if values[key]]
    return [
        f"{key} is set, but mdevs.manage is not: nothing is made; set mdevs.manage: true"
        for key in asked
        if not values["mdevs.manage"]
    ]


def watched_paths(root_prefix: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The directories of these files, present and to come, and those that links lead to."""
    found: list[str] = []
    if values["mdevs.mdevctl"]:
        found += mdevctl.directories(sources.below(root_prefix, mdevctl.DIRECTORY))
    if values["mdevs.vgpuConfigFile"]:
        path = sources.below(root_prefix, values["mdevs.vgpuConfigFile"])
        found += [os.path.dirname(each) for each in (path, os.path.realpath(path))]  # noqa: PTH120
    return tuple(found)


def _cards(
    root_prefix: str, values: Mapping[str, Any], problems: Problems, warnings: list[str]
) -> tuple[CardTypes, ...]:
    """The configuration that the node's label names, else the one that the settings name."""
    path = values["mdevs.vgpuConfigFile"]
    if not path:
        return ()
    chosen = values["node.labels"].get(LABEL) or values["mdevs.vgpuConfig"]
    if not chosen:
        what = "mdevs.vgpuConfigFile is set, but no configuration of it is chosen"
        warnings.append(f"{what}; set mdevs.vgpuConfig, or the label {LABEL} in node.labels")
        return ()
    from nodeagent.config.imports import vgpu_device_manager  # here: few nodes have such a file

    try:
        return vgpu_device_manager.read(sources.below(root_prefix, path), chosen)
    except ConfigError as error:
        problems.add_error(error)
        return ()
