# SPDX-License-Identifier: Apache-2.0
"""What the cluster says of this node: the KubeVirt CR, and the labels of the Node. Frozen values, no I/O.

None stands for what was never heard, which differs from what the cluster has not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nodeagent.model.kubevirt import KubeVirtCR


class ClusterWishes(NamedTuple):
    """The last that was heard, and could be used."""

    kubevirt: KubeVirtCR | None = None
    labels: Mapping[str, str] | None = None
