# SPDX-License-Identifier: Apache-2.0
"""What files of other tools want of mdevs: definitions of mdevctl, a file of vgpu-device-manager.

Read whenever the settings are, below the root prefix. A broken definition is a warning, since mdevctl keeps
one file for each device. What is wrong with the other file is kept with what it says: whether that is an
error depends on the configuration that is chosen for the node, which is ``policy.merge``'s to say.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nodeagent.base.errors import ConfigError
from nodeagent.config.imports import mdevctl
from nodeagent.config.reader import sources
from nodeagent.model.configuration import Imported, MdevctlDefinitions, VgpuFile
from nodeagent.model.problem import misconfigured

if TYPE_CHECKING:
    from nodeagent.model.configuration import Mdevs


def read(root_prefix: str, mdevs: Mdevs, warnings: list[str]) -> Imported:
    """What the files say that the settings name."""
    directory = sources.below(root_prefix, mdevctl.DIRECTORY)
    definitions = mdevctl.read(directory, warnings) if mdevs.mdevctl else MdevctlDefinitions()
    vgpu = _vgpu(sources.below(root_prefix, mdevs.vgpu_config_file)) if mdevs.vgpu_config_file else None
    return Imported(definitions, vgpu)


def watched_paths(root_prefix: str, mdevs: Mdevs) -> tuple[str, ...]:
    """The directories of these files, present and to come, and those that links lead to."""
    directories: list[str] = []
    if mdevs.mdevctl:
        directories += mdevctl.directories(sources.below(root_prefix, mdevctl.DIRECTORY))
    if mdevs.vgpu_config_file:
        path = sources.below(root_prefix, mdevs.vgpu_config_file)
        directories += [os.path.dirname(file) for file in (path, os.path.realpath(path))]  # noqa: PTH120
    return tuple(directories)


def _vgpu(path: str) -> VgpuFile:
    from nodeagent.config.imports import vgpu_device_manager  # here: few nodes have such a file

    try:
        return VgpuFile(path, vgpu_device_manager.read(path))
    except ConfigError as error:
        return VgpuFile(path, fault=misconfigured("", error.what, error.hint))
