# SPDX-License-Identifier: Apache-2.0
"""Configuration errors, collected so that all of them are reported at once.

Each error has two lines: place and cause, then a hint. A check that knows a value but not its place raises
``Invalid``; the caller adds the place and reports a ``ConfigError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.base.errors import ConfigError
from nodeagent.policy import naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Keys of other tools that users may paste into the file. Sources: the API of KubeVirt (core/v1), and the
# documentation of sriov-network-device-plugin 3.11, generic-device-plugin 0.1, k8s-device-plugin 0.20,
# mdevctl 1.4, vgpu-device-manager 0.5 and the GPU operator's ClusterPolicy.
PAGE = "docs/migrating.md"
_KUBEVIRT, _SRIOV = "the KubeVirt CR", "the sriov-network-device-plugin"
_GENERIC = "squat's generic-device-plugin"
_TRANSLATED = (_KUBEVIRT, _SRIOV, _GENERIC)

_KEYS: Mapping[str, str] = {
    "a Kubernetes object": "kind metadata spec",
    _KUBEVIRT: "permittedHostDevices pciHostDevices mediatedDevices pciVendorSelector mdevNameSelector "
    "externalResourceProvider resourceName mediatedDevicesConfiguration mediatedDeviceTypes "
    "mediatedDevicesTypes nodeMediatedDeviceTypes",
    _SRIOV: "resourceList resourcePrefix deviceType selectors pciAddresses acpiIndexes rootDevices pfNames "
    "linkTypes ddpProfiles isRdma needVhostNet vdpaType pKeys auxTypes excludeTopology additionalInfo",
    _GENERIC: "groups domain",
    "NVIDIA's k8s-device-plugin": "sharing timeSlicing mps migStrategy renameByDefault deviceListStrategy "
    "deviceIDStrategy",
    "NVIDIA's vgpu-device-manager": "vgpu-configs vgpu-devices device-filter",
    "mdevctl": "mdev_type attrs",
    "NVIDIA's GPU operator": "sandboxWorkloads sandboxDevicePlugin vfioManager vgpuManager vgpuDeviceManager",
}
_OWNERS = {key: owner for owner, keys in _KEYS.items() for key in keys.split()}


class Invalid(Exception):
    """Raised when one value fails its check; caught inside ``nodeagent.config``."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class ConfigErrors(ConfigError):
    """Raised for several errors at once; ``what`` and ``hint`` are those of the first, ``errors`` has all."""

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = tuple(errors)
        super().__init__(self.errors[0].what, self.errors[0].hint)

    def lines(self) -> str:
        """Return the two lines of each error."""
        return "\n".join(error.lines() for error in self.errors)


def more(error: ConfigError) -> str:
    """Return a text for one-line messages: the number of further errors and the command that lists them."""
    count = len(error.errors) - 1 if isinstance(error, ConfigErrors) else 0
    return f"; {count} more: nodeagent status lists all" if count else ""


class Problems:
    """The configuration errors so far, in the order of their discovery."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    def add(self, place: str, key: str, what: str, hint: str) -> None:
        """Add an error of ``key`` at a place; both may be empty."""
        words = [part for part in (place, key, what) if part]
        self.errors.append(ConfigError(": ".join(words), hint))

    def raise_any(self) -> None:
        """Raise the collected errors as a ConfigError or ConfigErrors, if there are any."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise ConfigErrors(self.errors)


def hint_for_unknown(key: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown key: the documentation page for a key of another tool, or the nearest
    known key.
    """
    owner = _OWNERS.get(key)
    if owner is None:
        return naming.suggest(key, known)
    more = "; nodeagent config --from FILE makes rules of it" if owner in _TRANSLATED else ""
    return f"this is a key of {owner}: {PAGE} has its counterpart{more}"
