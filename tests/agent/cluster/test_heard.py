# SPDX-License-Identifier: Apache-2.0
"""What is heard replaces what was heard before, as far as it can be used."""

from __future__ import annotations

from typing import Any

from nodeagent.agent.cluster import heard
from nodeagent.agent.cluster.heard import Heard
from nodeagent.agent.cluster.record import Record
from tests.cluster import crs
from tests.facts import each_names

SERVED = {"permittedHostDevices": {"pciHostDevices": [crs.external(crs.T4)]}}
CR = crs.document(SERVED)
NODE = {"metadata": {"name": "n", "labels": {"a": "b", "number": 7}}}


def crs_of(*documents: Any) -> dict[str, Any]:
    return {str(number): each for number, each in enumerate(documents)}


def resources(found: Heard) -> list[str]:
    cr = found.wishes.kubevirt
    return [] if cr is None or cr.permitted is None else [entry.resource for entry in cr.permitted.entries]


def test_without_an_answer_what_was_heard_before_counts() -> None:
    before = heard.before(Record(CR, {"a": "b"}))
    assert resources(before) == [crs.T4["resourceName"]]
    assert heard.after(before, None, None, "n") == before
    assert heard.after(Heard(), None, None, "n") == Heard()


def test_an_answer_replaces_both() -> None:
    found = heard.after(Heard(), crs_of(CR), {"n": NODE}, "n")
    assert resources(found) == [crs.T4["resourceName"]]
    assert found.wishes.labels == {"a": "b"}, "a label that is no text is none"
    found = heard.after(found, crs_of(crs.document({})), {"n": {"metadata": {"name": "n"}}}, "n")
    assert (resources(found), found.wishes.labels, found.doubts) == ([], {}, ())


def test_a_cr_that_is_gone_or_makes_no_sense_leaves_the_last_good_one_in_force() -> None:
    good = heard.after(Heard(), crs_of(CR), None, "n")
    gone = heard.after(good, {}, None, "n")
    assert gone.wishes == good.wishes
    each_names(gone.doubts, ("KubeVirt CR",))
    broken = heard.after(gone, crs_of(crs.document({"permittedHostDevices": "all"})), None, "n")
    assert broken.wishes == good.wishes
    each_names(broken.doubts, ("spec.configuration.permittedHostDevices", "all"))
    assert heard.after(broken, crs_of(CR), None, "n") == good


def test_a_cluster_that_never_had_a_cr_is_no_doubt_and_a_node_that_is_not_there_is_one() -> None:
    assert heard.after(Heard(), {}, {"n": NODE}, "n").doubts == ()
    found = heard.after(heard.before(Record(None, {"a": "b"})), {}, {}, "other")
    assert found.wishes.labels == {"a": "b"}
    each_names(found.doubts, ("other", "node.name"))
