# SPDX-License-Identifier: Apache-2.0
"""The condition of the Node says whether something needs a person, and is written only when that differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from nodeagent.agent.cluster import condition
from nodeagent.agent.cluster.condition import NO_PROBLEMS, ConditionWriter
from nodeagent.agent.core import Core
from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster.node_status import Condition
from nodeagent.model.resource import ReasonCode
from nodeagent.model.status import Status
from nodeagent.sim.apiserver.server import Refusal
from nodeagent.sim.apiserver.store import NODES
from tests import virtual
from tests.agent.cluster.statuses import GPU, GPU_AT, bad, good, status
from tests.agent.cluster.telling import NAME, OWN, READY, telling
from tests.conftest import Said
from tests.facts import names

UNHEALTHY = f"{GPU}: {GPU_AT} is Unhealthy: it is driver-changed"
HELD = f"{GPU}: {GPU_AT} is Unhealthy: it is group-held"
BROKEN = status(bad(), problems=(UNHEALTHY,))
BROKEN_MORE = status(bad(), problems=(UNHEALTHY, "the devices in use are not known: no answer"))
MOMENT = Timeouts().condition_settle + 2.0


PAGE = Path(__file__).parents[3] / "docs/events.md"


def made(core: Core, now: Callable[[], Status]) -> ConditionWriter:
    """Without jitter, on the first day of 1970."""
    return ConditionWriter(core, now, clock=anyio.current_time, jitter=lambda: 0.0)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (status(good()), NO_PROBLEMS),
        (status(bad(code=ReasonCode.GROUP_HELD)), NO_PROBLEMS),
        (
            status(bad(code=ReasonCode.GROUP_HELD), problems=(HELD,)),
            HELD,
        ),
        (status(silent="GET x: 500"), NO_PROBLEMS),
        (
            BROKEN,
            UNHEALTHY,
        ),
    ],
    ids=[
        "all is well",
        "held is as it should be",
        "in use by two pods",
        "the silence of the API server",
        "a device is broken",
    ],
)
def test_it_is_false_while_something_needs_a_person(told: Status, says: Condition | str) -> None:
    found = condition.condition(told)
    if isinstance(says, str):
        assert (found.status, found.reason) == ("False", "ActionRequired")
        names(found.message, "nodeagent status", says)
    else:
        assert found == says


def test_the_page_has_its_reasons() -> None:
    page = PAGE.read_text()
    for told in (NO_PROBLEMS, condition.condition(BROKEN)):
        assert f"| `{told.status}` | `{told.reason}` |" in page


def test_its_text_fits_whatever_is_wrong() -> None:
    many = status(problems=tuple(f"{UNHEALTHY} \x1b{number}" for number in range(1000)))
    message = condition.condition(many).message
    assert message.isprintable()
    assert len(message.encode()) <= 1024


@virtual.TIME
async def test_it_is_written_after_a_moment_and_only_when_it_differs(tmp_path: Path) -> None:
    async with telling(tmp_path, made, condition=True) as it:
        await anyio.sleep(Timeouts().condition_settle - 2.0)
        assert it.condition() is None
        await anyio.sleep(3.0)
        assert (it.condition()["status"], it.condition()["reason"]) == ("True", "NoProblems")
        since = it.condition()["lastTransitionTime"]
        await anyio.sleep(900.0)
        assert it.requests == ["PATCH"], "no heartbeat"
        it.now(BROKEN)
        await anyio.sleep(MOMENT)
        assert (it.condition()["status"], UNHEALTHY in it.condition()["message"]) == ("False", True)
        assert it.condition()["lastTransitionTime"] > since
        node = it.server.store.get(NODES, NAME)
        assert node is not None
        assert READY in node["status"]["conditions"]
        it.now(status(good()))
        await anyio.sleep(MOMENT)
        assert it.condition()["status"] == "True"
        assert it.requests == ["PATCH"] * 3


@virtual.TIME
async def test_another_text_waits_and_leaves_the_time_of_the_transition(tmp_path: Path) -> None:
    async with telling(tmp_path, made, condition=True) as it:
        it.now(BROKEN)
        await anyio.sleep(MOMENT)
        since = it.condition()["lastTransitionTime"]
        for _ in range(10):
            it.now(BROKEN_MORE)
            await anyio.sleep(1.0)
            it.now(BROKEN)
            await anyio.sleep(1.0)
        it.now(BROKEN_MORE)
        await anyio.sleep(Timeouts().condition_text_settle - 15.0)
        assert it.requests == ["PATCH"]
        await anyio.sleep(20.0)
        assert it.requests == ["PATCH"] * 2
        assert BROKEN_MORE.problems[1] in it.condition()["message"]
        assert it.condition()["lastTransitionTime"] == since


@virtual.TIME
async def test_what_is_over_within_the_moment_is_not_written(tmp_path: Path) -> None:
    async with telling(tmp_path, made, condition=True) as it:
        await anyio.sleep(MOMENT)
        for _ in range(20):
            it.now(BROKEN)
            await anyio.sleep(Timeouts().condition_settle / 2)
            it.now(status(good()))
            await anyio.sleep(Timeouts().condition_settle / 2)
        assert it.requests == ["PATCH"]


@virtual.TIME
async def test_many_nodes_write_it_over_a_time(tmp_path: Path) -> None:
    def late(core: Core, now: Callable[[], Status]) -> ConditionWriter:
        return ConditionWriter(core, now, jitter=lambda: 1.0)

    async with telling(tmp_path, late, condition=True) as it:
        await anyio.sleep(Timeouts().condition_settle + Timeouts().condition_spread - 2.0)
        assert it.requests == []
        await anyio.sleep(2.0)
        assert it.requests == ["PATCH"]


@virtual.TIME
async def test_a_daemon_that_starts_writes_nothing_if_the_node_says_so_already(tmp_path: Path) -> None:
    async with telling(tmp_path, made) as it:
        own = {"type": OWN, "status": "True", "reason": NO_PROBLEMS.reason, "message": NO_PROBLEMS.message}
        it.server.store.put(NODES, {"metadata": {"name": NAME}, "status": {"conditions": [READY, own]}})
        it.configure(condition=True)
        await anyio.sleep(100.0)
        assert it.requests == []
        it.server.store.put(NODES, {"metadata": {"name": NAME}, "status": {"conditions": [READY]}})
        await anyio.sleep(LOOK_AND_MOMENT)
        assert it.requests == ["PATCH"], "a Node that was made anew gets it again"


LOOK_AND_MOMENT = Timeouts().cluster_status_poll + MOMENT


@virtual.TIME
async def test_where_it_is_not_wanted_nothing_is_written_and_what_was_is_removed(tmp_path: Path) -> None:
    async with telling(tmp_path, made) as it:
        it.now(BROKEN)
        await anyio.sleep(100.0)
        assert it.requests == []
        it.configure(condition=True)
        await anyio.sleep(LOOK_AND_MOMENT)
        assert it.condition()["status"] == "False"
        it.configure(condition=False)
        await anyio.sleep(LOOK_AND_MOMENT)
        assert it.condition() is None


@virtual.TIME
async def test_a_right_that_is_missing_is_said_once_and_tried_seldom(tmp_path: Path, said: Said) -> None:
    async with telling(tmp_path, made, condition=True) as it:
        it.server.faults.set("status:nodes", Refusal(403, method="PATCH"))
        await anyio.sleep(Timeouts().missing_right_retry - 60.0)
        assert it.requests == ["PATCH"]
        (line,) = it.status.write_errors
        names(line, "DevicesUsable", "PATCH /api/v1/nodes/node1/status")
        assert len(said(log.CLUSTER_WRITE_REFUSED)) == 1
        it.server.faults.clear("status:nodes")
        await anyio.sleep(90.0)
        assert it.condition()["status"] == "True"
        assert it.status.write_errors == ()


@virtual.TIME
@pytest.mark.parametrize("code", [409, 429, 500])
async def test_a_server_that_fails_is_asked_ever_less_often(code: int, tmp_path: Path) -> None:
    async with telling(tmp_path, made, condition=True) as it:
        it.server.faults.set("status:nodes", Refusal(code, method="PATCH"))
        await anyio.sleep(300.0)
        assert 3 <= len(it.requests) <= 30
        it.server.faults.clear("status:nodes")
        await anyio.sleep(60.0)
        assert it.condition()["status"] == "True"
