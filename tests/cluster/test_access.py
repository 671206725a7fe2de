# SPDX-License-Identifier: Apache-2.0
"""Reviews of our own access: what the API server says is believed only where it says so plainly."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import access
from nodeagent.model.access import Right
from nodeagent.sim.apiserver.answers import Refusal
from nodeagent.sim.apiserver.reviews import USER
from tests.cluster.following import served, session

PATCH = Right("patch", "", "nodes", "status", name="node1")


async def test_a_right_is_had_unless_it_is_denied(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as made:
        assert (await access.review(made, PATCH)).allowed
        server.denied.add(("patch", "nodes"))
        assert (await access.review(made, PATCH)).allowed, "the node itself is another resource"
        server.denied.add(("patch", "nodes/status"))
        assert not (await access.review(made, PATCH)).allowed
        assert await access.user(made) == USER


async def test_a_kind_is_there_if_somebody_has_installed_it(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as made:
        assert await access.serves(made, "kubevirt.io/v1", "kubevirts")
        assert not await access.serves(made, "kubevirt.io/v1", "others")
        server.absent.add("kubevirt.io")
        assert not await access.serves(made, "kubevirt.io/v1", "kubevirts")


async def test_who_is_not_known_at_all_is_no_answer(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as made:
        server.tokens.add("another")
        for question in (access.user(made), access.review(made, PATCH), access.serves(made, "v", "p")):
            with pytest.raises(ClusterUnavailable, match="401"):
                await question


async def test_an_answer_without_a_verdict_allows_nothing(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as made:
        server.faults.set("review", {"status": {"allowed": "yes", "reason": "\x1b[2J"}})
        verdict = await access.review(made, PATCH)
        assert verdict == access.Verdict(allowed=False)
        server.faults.set("status", Refusal(500))
        with pytest.raises(ClusterUnavailable, match="500"):
            await access.review(made, PATCH)


def test_a_rule_is_what_rbac_reads() -> None:
    assert PATCH.rule == '{apiGroups: [""], resources: ["nodes/status"], verbs: ["patch"]}'
    assert PATCH.object == "nodes/status"
    assert Right("list", "kubevirt.io", "kubevirts").object == "kubevirts.kubevirt.io"
