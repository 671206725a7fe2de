# SPDX-License-Identifier: Apache-2.0
"""An answer replaces the state in force as far as it can be used; on disk it is whole, for root alone."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from nodeagent.agent.cluster import state
from nodeagent.agent.cluster.state import SECTION, ClusterState, trim_cr, trim_node
from nodeagent.base import log
from nodeagent.base.state import CLUSTER
from nodeagent.model.kubevirt import ClusterConfig
from tests.cluster import crs
from tests.conftest import Said
from tests.facts import each_names

SERVED = {"permittedHostDevices": {"pciHostDevices": [crs.external(crs.T4)]}}
CR = crs.document(SERVED)
NODE = {"metadata": {"name": "n", "labels": {"a": "b", "number": 7}}}


def crs_of(*documents: Any) -> dict[str, Any]:
    return {str(number): each for number, each in enumerate(documents)}


def resources(found: ClusterState) -> list[str]:
    cr = found.config.kubevirt
    return [] if cr is None or cr.permitted is None else [entry.resource for entry in cr.permitted]


def test_without_an_answer_what_was_heard_before_counts() -> None:
    before = state.update(ClusterState(), crs_of(CR), {"n": NODE}, "n")
    assert state.update(before, None, None, "n") == before
    assert state.update(ClusterState(), None, None, "n") == ClusterState()


def test_an_answer_replaces_both() -> None:
    found = state.update(ClusterState(), crs_of(CR), {"n": NODE}, "n")
    assert resources(found) == [crs.T4["resourceName"]]
    assert found.config.labels == {"a": "b"}, "a label that is no text is none"
    found = state.update(found, crs_of(crs.document({})), {"n": {"metadata": {"name": "n"}}}, "n")
    assert (resources(found), found.config.labels, found.doubts) == ([], {}, ())


def test_a_cr_that_is_gone_or_makes_no_sense_leaves_the_last_good_one_in_force() -> None:
    good = state.update(ClusterState(), crs_of(CR), None, "n")
    gone = state.update(good, {}, None, "n")
    assert gone.config == good.config
    each_names(gone.doubts, ("KubeVirt CR",))
    broken = state.update(gone, crs_of(crs.document({"permittedHostDevices": "all"})), None, "n")
    assert broken.config == good.config
    each_names(broken.doubts, ("spec.configuration.permittedHostDevices", "all"))
    assert state.update(broken, crs_of(CR), None, "n") == good


def test_a_cluster_that_never_had_a_cr_is_no_doubt_and_a_node_that_is_not_there_is_one() -> None:
    assert state.update(ClusterState(), {}, {"n": NODE}, "n").doubts == ()
    found = state.update(ClusterState(config=ClusterConfig(labels={"a": "b"})), {}, {}, "other")
    assert found.config.labels == {"a": "b"}
    each_names(found.doubts, ("other", "node.name"))


def test_a_saved_state_is_loaded_again(tmp_path: Path) -> None:
    prefix = str(tmp_path)
    assert SECTION.load(prefix) == ClusterState()
    found = state.update(ClusterState(), crs_of(CR), {"n": NODE}, "n")
    for saved in (
        found._replace(saved=1790000000.5),
        ClusterState(config=ClusterConfig(labels={}), saved=2.0),
    ):
        SECTION.save(prefix, saved)
        assert SECTION.load(prefix) == SECTION.peek(prefix) == saved
    assert stat.S_IMODE(Path(CLUSTER.path(prefix)).stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ['{"x": 1}', '{"labels": {"a": 1}}', '{"kubevirt": []}', '{"at": "now"}'])
def test_a_section_of_other_types_is_set_aside_and_logged(tmp_path: Path, text: str, said: Said) -> None:
    path = Path(CLUSTER.path(str(tmp_path)))
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"cluster": {text}}}')
    assert SECTION.load(str(tmp_path)) == ClusterState()
    assert len(said(log.STATE_DAMAGED)) == 1


def test_what_nobody_reads_is_not_kept() -> None:
    named = {"name": "n", "labels": {"a": "b"}}
    counts = {"capacity": {"example.com/old": "0"}, "allocatable": {"example.com/old": "0"}}
    many = {
        "metadata": named | {"managedFields": [1]},
        "spec": {"x": 1},
        "status": {"phase": "Deployed", "images": [1]} | counts,
    }
    assert trim_cr(many) == {"metadata": named, "spec": {"x": 1}, "status": {"phase": "Deployed"}}
    assert trim_node(many) == {"metadata": named, "status": counts}
    assert trim_cr({"metadata": 7, "status": []}) == {"metadata": 7, "status": {}}
    assert trim_node({"status": []}) == {"metadata": None}
