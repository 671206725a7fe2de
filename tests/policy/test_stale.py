# SPDX-License-Identifier: Apache-2.0
"""Stale is what nobody gives any more, and removable what the kubelet has forgotten."""

from __future__ import annotations

import pytest

from nodeagent.model.status import StaleStatus
from nodeagent.policy import stale

OLD = "example.com/old"


@pytest.mark.parametrize(
    ("offered", "known", "removed", "why"),
    [
        ((), frozenset[str](), (), ""),
        ((), frozenset({"example.com/other"}), (), ""),
        ((), frozenset({OLD}), (), stale.KNOWN),
        ((), frozenset({OLD}), (OLD,), stale.KNOWN),
        ((), None, (), stale.UNKNOWN),
        ((), frozenset[str](), (OLD,), stale.BACK),
        ((OLD,), frozenset[str](), (), None),
        ((OLD,), None, (OLD,), None),
    ],
)
def test_a_name_that_counts_nothing(
    offered: tuple[str, ...], known: frozenset[str] | None, removed: tuple[str, ...], why: str | None
) -> None:
    wanted = () if why is None else (StaleStatus(OLD, why),)
    assert tuple(stale.stale((OLD,), offered, known, removed)) == wanted


def test_what_counts_something_is_nobody_s_to_judge() -> None:
    assert tuple(stale.stale((), (), frozenset())) == ()
