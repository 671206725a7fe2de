# SPDX-License-Identifier: Apache-2.0
"""A pod's service account, as the kubelet mounts it."""

from __future__ import annotations

from pathlib import Path

from nodeagent.cluster.credentials import HOST, has_service_account, is_followed
from nodeagent.model.spec import ClusterMode

POD = {HOST: "10.0.0.1"}


def test_there_is_an_account_in_a_pod_that_has_a_token(tmp_path: Path) -> None:
    assert not has_service_account(POD, tmp_path)
    (tmp_path / "token").write_text("secret")
    assert has_service_account(POD, tmp_path)


def test_a_token_without_an_address_is_none(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    assert not has_service_account({}, tmp_path)


def test_who_is_to_follow_does_so_without_an_account() -> None:
    assert is_followed(ClusterMode.YES)
    assert not is_followed(ClusterMode.NO)
