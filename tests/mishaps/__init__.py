# SPDX-License-Identifier: Apache-2.0
"""The old name of ``tests.chaos.crashes``, which ``tests/blackbox/test_bindings_killed.py`` still imports."""

from tests.chaos.crashes import points, story

__all__ = ["points", "story"]
