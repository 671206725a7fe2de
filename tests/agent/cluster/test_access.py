# SPDX-License-Identifier: Apache-2.0
"""Reviews of our own access: a right counts as granted only if the API server says so plainly."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.agent.cluster.inspection import Right, check_right, read_user, serves
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.sim.apiserver.requests import USER
from nodeagent.sim.apiserver.server import Refusal
from tests.cluster.following import served, session

PATCH = Right("patch", "", "nodes", "status", name="node1")


async def test_a_right_is_had_unless_it_is_denied(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as made:
        assert (await check_right(made, PATCH)).ok
        server.denied.add(("patch", "nodes"))
        assert (await check_right(made, PATCH)).ok, "the node itself is another resource"
        server.denied.add(("patch", "nodes/status"))
        assert not (await check_right(made, PATCH)).ok
        assert await read_user(made) == USER


async def test_a_kind_is_there_if_somebody_has_installed_it(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as made:
        assert await serves(made, "kubevirt.io/v1", "kubevirts")
        assert not await serves(made, "kubevirt.io/v1", "others")
        server.absent.add("kubevirt.io")
        assert not await serves(made, "kubevirt.io/v1", "kubevirts")


async def test_who_is_not_known_at_all_is_no_answer(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as made:
        server.tokens.add("another")
        for question in (read_user(made), check_right(made, PATCH), serves(made, "v", "p")):
            with pytest.raises(ClusterUnavailable, match="401"):
                await question


async def test_an_answer_without_a_verdict_allows_nothing(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as made:
        server.faults.set("review", {"status": {"allowed": "yes", "reason": "\x1b[2J"}})
        check = await check_right(made, PATCH)
        assert (check.ok, check.message) == (False, PATCH.purpose)
        server.faults.set("status", Refusal(500))
        with pytest.raises(ClusterUnavailable, match="500"):
            await check_right(made, PATCH)


def test_a_rule_is_what_rbac_reads() -> None:
    assert PATCH.rule == '{apiGroups: [""], resources: ["nodes/status"], verbs: ["patch"]}'
    assert PATCH.object == "nodes/status"
    assert Right("list", "kubevirt.io", "kubevirts").object == "kubevirts.kubevirt.io"
