# SPDX-License-Identifier: Apache-2.0
"""Random sequences of admissions, ends, restarts and silence hold R2 to R8; ``modelled`` runs many more."""

from __future__ import annotations

import pytest

from tests import virtual
from tests.agent.modelled import sequences


@virtual.TIME
@pytest.mark.parametrize("part", range(4))
async def test_random_sequences_break_no_promise(part: int) -> None:
    assert await sequences(range(part * 20, part * 20 + 20), steps=15) == 20
