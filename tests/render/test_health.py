# SPDX-License-Identifier: Apache-2.0
"""Health for probes: what counts as alive, and what as ready."""

from __future__ import annotations

import pytest

from nodeagent.model.status import Status
from nodeagent.render import health
from nodeagent.render.health import Health
from tests.facts import names
from tests.render.statuses import GPU, WELL

SCANNED = WELL.host._replace(scanned=True)
LISTED = WELL.resources[0]._replace(listed=True)
READY = WELL._replace(host=SCANNED, resources=(LISTED,))
AWAY = WELL.kubelet._replace(present=False)


def test_whoever_stands_still_is_named() -> None:
    assert health.alive(None) == Health(True, "alive")
    assert health.alive("observe has said nothing for 60 s") == Health(
        False, "observe has said nothing for 60 s"
    )


@pytest.mark.parametrize(
    ("status", "facts"),
    [
        (READY._replace(host=WELL.host), ("scanned",)),
        (
            READY._replace(resources=(LISTED._replace(registered=False, listed=False),)),
            (f"{GPU}: ", "kubelet"),
        ),
        (
            READY._replace(resources=(LISTED._replace(listed=False),)),
            (f"{GPU}: ", "kubelet", "list"),
        ),
    ],
    ids=["not scanned", "not registered", "not listed"],
)
def test_a_node_is_ready_when_all_was_scanned_and_the_kubelet_knows_it(
    status: Status, facts: tuple[str, ...]
) -> None:
    well, text = health.ready(status)
    assert not well
    names(text, *facts)


@pytest.mark.parametrize(
    "status",
    [
        READY,
        READY._replace(kubelet=AWAY, resources=(LISTED._replace(registered=False, listed=False),)),
        READY._replace(resources=()),
        READY._replace(problems=("0000:66:00.0 is Unhealthy",)),
    ],
    ids=["all is well", "no kubelet", "nothing to offer", "an unhealthy device"],
)
def test_a_kubelet_that_is_away_and_devices_that_are_unhealthy_hinder_nothing(status: Status) -> None:
    assert health.ready(status) == Health(True, "ready")
