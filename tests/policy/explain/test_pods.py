# SPDX-License-Identifier: Apache-2.0
"""What a pod has, and in which form."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.allocation import Holder
from nodeagent.model.ids import ResourceName
from nodeagent.model.spec import NodeRule, Spec
from nodeagent.policy.explain import pods
from nodeagent.policy.explain.pods import PodExplanation
from nodeagent.policy.offer import turn
from tests.policy.samples import GPU, RULE, function, holders, host, snapshot

A, B = "0000:65:00.0", "0000:66:00.0"


def told(pod: str = "ns/vm", **held: str) -> PodExplanation | None:
    """Of a host with two GPUs, B without a driver; ``held``: a short name → its resource, all by ns/vm."""
    ids = {"a": A, "b": B, "share": "kvm-0", "foreign": "x1", "gone": "0000:99:00.0"}
    given = {ids[key]: Holder("ns", "vm", ResourceName(name)) for key, name in held.items()}
    wish = Spec(rules=(RULE, NodeRule("x/kvm", "/dev/kvm", 2)))
    here = host(function(A), function(B, 2, driver=None), nodes=frozenset({"/dev/vfio/vfio", "/dev/kvm"}))
    return pods.explain(pod, turn.decide_first(snapshot(here, wish, holders=given)))


def test_a_pod_has_its_devices_in_the_form_in_which_they_are_given() -> None:
    found = told(a=GPU, b=GPU)
    assert found is not None
    (part,) = found.resources
    assert part.env == {"PCI_RESOURCE_NVIDIA_COM_GPU": f"{A},{B}"}
    assert part.nodes == ("/dev/vfio/vfio", "/dev/vfio/1")
    assert [device.healthy for device in part.devices] == [True, False]


def test_shares_of_a_node_and_what_others_gave_are_there_too() -> None:
    found = told(share="x/kvm", foreign="other/plugin")
    assert found is not None
    other, kvm = found.resources
    assert (other.resource, other.ours, other.nodes) == ("other/plugin", False, ())
    assert kvm.nodes == ("/dev/kvm",)


def test_what_is_given_by_cdi_has_names_and_no_nodes() -> None:
    wish = Spec(rules=(replace(RULE, cdi=True),))
    found = pods.explain("ns/vm", turn.decide_first(snapshot(host(function(A)), wish, holders=holders(A))))
    assert found is not None
    assert found.resources[0].cdi == (f"nodeagent.local/vfio={A}",)
    assert found.resources[0].nodes == ()


def test_who_has_nothing_is_not_known() -> None:
    assert told("ns/other", a=GPU) is None
    assert pods.known(snapshot(host(function(A)), holders=holders(A, B))) == ("ns/vm",)
