# SPDX-License-Identifier: Apache-2.0
"""The admission under way: whose Allocates are its, how long its groups stay open, and what ends it."""

from __future__ import annotations

from nodeagent.agent.admission import Admission, Admissions
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint, Entry
from nodeagent.model.allocation import Holder, Pods, Possession, unnamed
from nodeagent.model.ids import ResourceName

A, B = ResourceName("example.com/a"), ResourceName("example.com/b")
NOBODY: Pods = {"ns/p": frozenset()}
SHOWN: Pods = {"ns/p": frozenset({(A, "x")})}


def begun(pods: Pods | None = NOBODY, until: float = 10.0) -> tuple[Admissions, Admission]:
    """A pod has got x of A."""
    admissions = Admissions(timeouts=Timeouts())
    admission = admissions.asker(pods)
    admissions.begin(admission, until)
    admissions.gave([(A, "x")], now=1.0)
    return admissions, admission


def test_the_next_allocate_of_the_pod_is_told_by_what_the_kubelet_shows() -> None:
    admissions, admission = begun()
    assert admissions.asker(SHOWN) is admission
    assert admissions.asker({**SHOWN, "ns/q": frozenset()}) is not admission
    assert admissions.asker(None) is not admission


def test_whom_the_kubelet_was_not_asked_about_nobody_is_taken_for() -> None:
    admissions, admission = begun(pods=None)
    assert admissions.asker(SHOWN) is not admission


def test_once_the_kubelet_has_begun_to_start_the_pod_another_one_asks_though_no_name_is_new() -> None:
    entries = (Entry("u", A, "x", None), Entry("old", A, "x", None))
    admissions = Admissions(timeouts=Timeouts())
    admission = admissions.asker(NOBODY, Checkpoint((1, 1, 1), entries[1:], frozenset({"old"})))
    admissions.begin(admission, 10.0)
    admissions.gave([(A, "x")], now=1.0)
    for uids in (None, {"old"}):  # it cannot be seen; a pod that has ended keeps its directory for long
        begun_by_now = None if uids is None else frozenset(uids)
        assert admissions.asker(SHOWN, Checkpoint((1, 2, 1), entries, begun_by_now)) is admission
    assert admissions.asker(SHOWN, Checkpoint((1, 2, 1), entries, frozenset({"old", "u"}))) is not admission


def test_what_is_not_clear_is_the_same_pod_s_only_while_its_groups_are_open() -> None:
    admissions, admission = begun()
    assert admissions.asker(NOBODY) is admission
    admissions.settle(10.0, None)
    assert admissions.asker(NOBODY) is not admission
    assert admissions.asker(SHOWN) is admission


def test_what_has_settled_stays_so_though_the_same_pod_asks_again() -> None:
    admissions, admission = begun()
    assert admissions.settling == {"x"}
    admissions.settle(9.9, None)
    assert admissions.settling == {"x"}
    admissions.settle(10.0, None)
    assert admissions.settling == frozenset()
    assert not admissions.begin(admission, 20.0)
    assert admissions.settling == frozenset()


def test_its_groups_stay_open_while_the_kubelet_has_not_entered_what_it_got_but_not_for_ever() -> None:
    admissions, _ = begun()
    admissions.settle(10.0, frozenset())
    assert admissions.settling == {"x"}
    assert admissions.settles is not None
    admissions.settle(admissions.settles, frozenset({(A, "x")}))
    assert admissions.settling == frozenset()
    admissions, _ = begun()
    admissions.settle(2.0 + Timeouts().foreign_allocate, frozenset())
    assert admissions.settling == frozenset()


def test_a_name_that_is_new_ends_it_and_one_that_goes_does_not() -> None:
    admissions, _ = begun({**NOBODY, "ns/old": frozenset()})
    assert not admissions.named(SHOWN)
    assert admissions.settling == {"x"}
    assert admissions.named({**SHOWN, "ns/q": frozenset()})
    assert admissions.settling == frozenset()


def test_the_pod_has_its_name_as_soon_as_the_kubelet_shows_what_it_got() -> None:
    admissions, admission = begun()
    assert admission.holder(B, 1) == unnamed(B, 1, admission.identity)
    assert admissions.asker(SHOWN).holder(B, 1) == Holder("ns", "p", B, 1)


def test_the_one_name_that_has_come_since_the_last_answer_is_the_pod_s() -> None:
    admissions = Admissions(timeouts=Timeouts())
    admissions.named({"ns/old": frozenset({(A, "y")})})
    old = frozenset({(A, "y")})
    assert admissions.asker({"ns/old": old, "ns/p": frozenset()}).name == "ns/p"
    assert admissions.asker({"ns/old": old, "ns/p": frozenset(), "ns/q": frozenset()}).name is None
    assert admissions.asker({"ns/old": frozenset()}).name == "ns/old", "it came again"
    admissions.named({"ns/old": old, "ns/p": frozenset()})
    nobody_else = {"ns/old": old, "ns/p": frozenset[Possession]()}
    assert admissions.asker(nobody_else).name is None, "whose admission is over is not known"
    admissions.begin(admissions.asker({"ns/old": old}), 10.0)
    assert admissions.asker(nobody_else).name is None, "it got nothing, so it may not be the one that asked"
    admissions.gave(old, 0.0)
    admissions.named(nobody_else)
    assert admissions.asker(nobody_else).name == "ns/p", "it shows nothing yet"


def test_who_was_named_while_another_plugin_took_its_time_may_be_the_one_that_asks() -> None:
    """What it got meanwhile is shown, unless it asks for a plain init container."""
    admissions, _ = begun()
    waits: Pods = {**SHOWN, "ns/quiet": frozenset(), "ns/q": frozenset()}
    admissions.named(waits)
    asks = admissions.asker({**waits, "ns/q": frozenset({(B, "y")})})
    assert asks.names == {"ns/quiet", "ns/q"}
