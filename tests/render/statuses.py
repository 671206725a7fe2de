# SPDX-License-Identifier: Apache-2.0
"""A Status of a daemon that is well, for whatever renders one."""

from __future__ import annotations

from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.status import (
    NO_CHANGES,
    DeviceStatus,
    EventsStatus,
    HolderStatus,
    HostStatus,
    KubeletStatus,
    ResourceStatus,
    Status,
)

GPU = ResourceName("nvidia.com/gpu")
ONE, TWO = DeviceId("0000:65:00.0"), DeviceId("0000:66:00.0")
KUBELET = KubeletStatus("/k.sock", True, "answers", True)
WELL = Status(
    version="0.1.0",
    pid=7,
    uptime_seconds=61.4,
    root="/",
    kubelet=KUBELET,
    host=HostStatus(3, 2, 0, True, (), EventsStatus("netlink", 5, 0, 0, 0)),
    resources=(
        ResourceStatus(
            GPU,
            (
                DeviceStatus(ONE, True, 0),
                DeviceStatus(TWO, False, None, "node-missing", "/dev/vfio/2 is missing", ""),
            ),
            1,
            True,
            1,
            None,
        ),
    ),
    changes=NO_CHANGES,
    holders={ONE: HolderStatus("ns/vm", GPU)},
    subsystems={},
    problems=(),
)
