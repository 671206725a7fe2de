# SPDX-License-Identifier: Apache-2.0
"""Claim: a prepared ResourceClaim of DRA (Dynamic Resource Allocation), with its devices and its files.

The kubelet forgets at each of its restarts that a claim is prepared, and asks no API server when a container
restarts. Therefore a Claim contains the texts of its files, so that they can be written again without the
ResourceClaim object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nodeagent.model.ids import ResourceName


class ClaimRef(NamedTuple):
    """A ResourceClaim as the kubelet names it; another claim may have the name, but never the ``uid``."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ClaimDevice(NamedTuple):
    """One allocated device of a claim.

    ``request``: its request as in ``status.allocation``; for a request with ``firstAvailable`` this is
    ``request/subrequest``. ``pool`` and ``name`` identify it in the ResourceSlices, ``resource`` and
    ``device_id`` in the offers of this node. ``parts`` are the ids of its HostDevices: PCI addresses or the
    UUIDs of mdevs. ``cdi`` are qualified CDI names; the first one belongs to this device alone.
    """

    request: str
    pool: str
    name: str
    resource: ResourceName
    device_id: str
    parts: tuple[str, ...]
    cdi: tuple[str, ...] = ()

    @property
    def main_request(self) -> str:
        """Return the name of the request without the subrequest, which is how containers name it."""
        return self.request.partition("/")[0]


class ClaimFile(NamedTuple):
    """A file for the containers of a claim; ``path`` is relative to the directory of such files."""

    path: str
    text: str


NO_FILE = ClaimFile("", "")


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim whose devices are in use from Prepare to Unprepare.

    ``pod_claim``: the name of the claim in the pod if the claim comes from a template; "" for a direct claim.
    ``boot_id``: the boot of the host at Prepare. ``cdi_file`` is for a CDI directory, ``metadata`` for
    the directory of metadata files.
    """

    ref: ClaimRef
    devices: tuple[ClaimDevice, ...]
    pod_claim: str = ""
    boot_id: str = ""
    cdi_file: ClaimFile = NO_FILE
    metadata: tuple[ClaimFile, ...] = ()
