# SPDX-License-Identifier: Apache-2.0
"""Is this function or mdev fit to be given to a VM, and if not, for which Reason. Pure: no second opinion.

Every Reason is decided anew at each turn, so one that can end by itself ends by itself. Which checks are
made, and in which order, is a matter of the kind of device (``kinds``).
"""

from __future__ import annotations

from nodeagent.model.host import HostDevice
from nodeagent.model.resource import Reason
from nodeagent.policy.offer import kinds
from nodeagent.policy.offer.checks.inputs import Unit, Use


def reason(host_device: HostDevice, unit: Unit, use: Use) -> Reason | None:
    """Why the device cannot be put to this use; None if it is Healthy."""
    for check in kinds.of(host_device).checks:
        refusal: Reason | None = check(host_device, unit, use)
        if refusal is not None:
            return refusal
    return None
