# SPDX-License-Identifier: Apache-2.0
"""A Status in which no component has reported anything yet."""

from __future__ import annotations

from nodeagent.model.status import ProcessStatus, unreported

EMPTY = unreported("0.1.0", 1, 0.0, "/", ProcessStatus())
