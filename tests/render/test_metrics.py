# SPDX-License-Identifier: Apache-2.0
"""Metrics of a Status: the text format, names as Prometheus wants them, and labels that stay few."""

from __future__ import annotations

import re

from nodeagent.model.change import ActionKind
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.problem import misconfigured
from nodeagent.model.status import (
    AllocationsStatus,
    ConfigurationStatus,
    DeviceStatus,
    Durations,
    MdevsStatus,
    ResultsStatus,
    Status,
    WaitingStatus,
)
from nodeagent.render import metrics
from tests.render.statuses import GPU, WELL

ODD = ResourceName('example.com/a"b\\c\nd')


def samples(status: Status) -> dict[str, str]:
    """Series → value."""
    lines = [line for line in metrics.text(status).splitlines() if not line.startswith("#")]
    return dict(line.rsplit(" ", 1) for line in lines)


def test_devices_are_counted_by_health_and_reason() -> None:
    found = samples(WELL)
    at = f'nodeagent_devices{{resource="{GPU}",'
    assert found[f'{at}health="healthy",reason=""}}'] == "1"
    assert found[f'{at}health="unhealthy",reason="node-missing"}}'] == "1"
    assert found[f'nodeagent_devices_allocated{{resource="{GPU}"}}'] == "1"


def test_what_was_counted_is_told_by_resource_kind_and_result() -> None:
    resource = WELL.resources[0]._replace(allocations=AllocationsStatus(5, 2, 1), registrations=3)
    changes = WELL.changes._replace(
        results=(ResultsStatus("remove-mdev", 4, 1),),
        waiting=(WaitingStatus("0000:3b:00.0", "remove it", "held", "remove-mdev"),),
    )
    mdevs = WELL.host._replace(mdev_states=(MdevsStatus("nvidia-222", "held", 7),))
    found = samples(WELL._replace(resources=(resource,), changes=changes, host=mdevs))
    assert found[f'nodeagent_allocations_total{{resource="{GPU}",result="granted"}}'] == "5"
    assert found[f'nodeagent_allocations_total{{resource="{GPU}",result="refused"}}'] == "2"
    assert found[f'nodeagent_allocations_total{{resource="{GPU}",result="failed"}}'] == "1"
    assert found[f'nodeagent_registrations_total{{resource="{GPU}"}}'] == "3"
    assert found['nodeagent_changes_total{change="remove-mdev",result="made"}'] == "4"
    assert found['nodeagent_changes_total{change="remove-mdev",result="refused"}'] == "1"
    assert found['nodeagent_changes_waiting{change="remove-mdev"}'] == "1"
    assert found['nodeagent_mdevs{type="nvidia-222",state="held"}'] == "7"


def test_counters_are_there_before_anything_is_counted() -> None:
    found = samples(WELL)
    for kind in ActionKind:
        assert found[f'nodeagent_changes_total{{change="{kind}",result="made"}}'] == "0"
    assert found[f'nodeagent_allocations_total{{resource="{GPU}",result="failed"}}'] == "0"
    assert found["nodeagent_config_refusals_total"] == "0"
    assert found["nodeagent_allocate_duration_seconds_count"] == "0"


def test_durations_are_counted_up_from_class_to_class() -> None:
    durations = Durations()
    for seconds in (0.001, 0.0011, 0.3, 60.0):
        durations = durations.and_one(seconds)
    found = samples(WELL._replace(allocating=durations))
    name = "nodeagent_allocate_duration_seconds"
    counts = {
        bound: found[f'{name}_bucket{{le="{bound}"}}']
        for bound in ("0.001", "0.0025", "0.25", "0.5", "10", "+Inf")
    }
    assert counts == {"0.001": "1", "0.0025": "2", "0.25": "2", "0.5": "3", "10": "3", "+Inf": "4"}
    assert (found[f"{name}_sum"], found[f"{name}_count"]) == ("60.3021", "4")


def test_a_wrong_configuration_and_a_missing_kubelet_can_be_told_from_a_good_node() -> None:
    wrong = ConfigurationStatus(3, 1.5, 2, misconfigured("", "config.yaml:1: bad", "hint"))
    away = WELL.kubelet._replace(present=False, pod_resources="no answer")
    found = samples(WELL._replace(configuration=wrong, kubelet=away, problems=("one", "two")))
    names = (
        "config_generation",
        "config_invalid",
        "config_refusals_total",
        "kubelet_present",
        "pod_resources_available",
    )
    assert [found[f"nodeagent_{name}"] for name in (*names, "problems")] == ["3", "1", "2", "0", "0", "2"]


def test_label_values_of_any_text_are_escaped() -> None:
    text = metrics.text(WELL._replace(resources=(WELL.resources[0]._replace(name=ODD),)))
    assert 'nodeagent_resource_registered{resource="example.com/a\\"b\\\\c\\nd"} 1\n' in text


def test_names_units_and_helps_are_as_prometheus_wants_them() -> None:
    for metric in metrics.METRICS:
        assert re.fullmatch(r"(nodeagent|process)_[a-z0-9_]+[a-z0-9]", metric.name)
        assert (metric.type == "counter") == metric.name.endswith("_total"), metric.name
        assert metric.help.endswith(".")
    names = [metric.name for metric in metrics.METRICS]
    assert len(set(names)) == len(names)


def test_no_device_and_no_pod_is_ever_named() -> None:
    devices = tuple(
        DeviceStatus(DeviceId(f"0000:{bus:02x}:00.0"), False, 0, "node-missing", "gone", "")
        for bus in range(200)
    )
    many = WELL._replace(resources=(WELL.resources[0]._replace(devices=devices),))
    text = metrics.text(many)
    assert not re.search(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", text)
    assert "ns/vm" not in text
    assert len(text.splitlines()) == len(metrics.text(WELL).splitlines())
