# SPDX-License-Identifier: Apache-2.0
"""A resource: capacity, allocatable, free; what the daemon lists although nothing of it is left."""

from __future__ import annotations

import pytest

from nodeagent.model.allocation import Knowledge
from nodeagent.model.host import Kind
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.resource import ReasonCode
from nodeagent.model.spec import Discovery, NodeRule, PciRule, PciSelector, Spec
from nodeagent.model.status import DeviceStatus, ResourceStatus
from nodeagent.policy.explain import resources
from nodeagent.policy.explain.resources import ResourceExplanation
from nodeagent.policy.offer import turn
from tests.policy.samples import GPU, UUID, WISH, function, holders, host, snapshot
from tests.render.statuses import WELL

A, B, C = "0000:65:00.0", "0000:66:00.0", "0000:67:00.0"
OFF = Discovery(enabled=False)


def told(
    name: str = GPU,
    wish: Spec = WISH,
    knowledge: Knowledge = Knowledge.COMPLETE,
    under: str = GPU,
) -> ResourceExplanation | None:
    """Of three GPUs, the first held and the last without a driver."""
    here = host(function(A), function(B, 2), function(C, 3, driver=None))
    held = holders(A, resource=under)
    return resources.explain(name, turn.decide_first(snapshot(here, wish, holders=held, knowledge=knowledge)))


def test_what_is_healthy_and_held_by_nobody_is_free() -> None:
    found = told()
    assert found is not None
    assert (found.capacity, found.allocatable, found.free) == (3, 2, 1)
    assert {each.id: each.holder for each in found.devices} == {A: "ns/vm", B: None, C: None}
    assert [each.id for each in found.devices if not each.healthy] == [C]


def test_where_nobody_was_asked_nothing_is_known_to_be_free() -> None:
    found = told(knowledge=Knowledge.UNKNOWN)
    assert found is not None
    assert found.free is None


def test_what_a_pod_holds_by_another_resource_is_not_held_by_this_one() -> None:
    found = told(under="x/other")
    assert found is not None
    assert {each.holder for each in found.devices} == {None}
    assert found.free == 1


def test_a_rule_makes_its_name_known_where_nothing_has_it() -> None:
    cr = PciRule("x/none", (PciSelector(vendors=("8086",), devices=("1111",)),), permitted=True)
    found = told("x/none", Spec(OFF, rules=(cr,), kubevirt_rules={"8086:1111": cr}))
    assert found is not None
    assert (found.capacity, [each.matches for each in found.rules]) == (0, [()])
    assert told("x/nobody") is None


def test_a_path_leads_to_all_resources_that_share_it_out() -> None:
    wish = Spec(OFF, rules=(NodeRule("x/a", "/dev/kvm"), NodeRule("x/b", "/dev/kvm"), *WISH.rules))
    decision = turn.decide_first(snapshot(host(), wish))
    assert resources.of_node("/dev/kvm", decision) == ("x/a", "x/b")
    assert resources.of_node("/dev/tun", decision) == ()


@pytest.mark.parametrize(("device_id", "kind"), [(A, Kind.PCI), (UUID, Kind.MDEV)])
def test_what_only_the_daemon_remembers_is_as_it_lists_it(device_id: str, kind: Kind) -> None:
    gone = DeviceStatus(DeviceId(device_id), False, None, "group-held", "held", "wait")
    status = WELL._replace(
        resources=(*WELL.resources, ResourceStatus(ResourceName("x/gone"), (gone,), 0, True, 1, None))
    )
    found = resources.remembered(status, turn.decide_first(snapshot(host(function(A)))))
    assert [*found] == ["x/gone"], "the other one is decided on here"
    (resource,) = found.values()
    assert resource.kind is kind
    assert resource.devices[0].reason == (ReasonCode.GROUP_HELD, "held", "wait")


def test_a_reason_of_another_version_is_not_guessed() -> None:
    odd = DeviceStatus(DeviceId(A), False, None, "of-tomorrow", "what", "")
    listed = (ResourceStatus(ResourceName("x/odd"), (odd,), 0, True, 1, None),)
    with pytest.raises(ValueError, match="of-tomorrow"):
        resources.remembered(WELL._replace(resources=listed), turn.decide_first(snapshot(host())))
