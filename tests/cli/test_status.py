# SPDX-License-Identifier: Apache-2.0
"""``nodeagent status`` as text, of a Status."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from nodeagent.cli import output, status
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.problem import Problem, ProblemCode, misconfigured, note, wrong
from nodeagent.model.status import (
    NO_CHANGES,
    ClusterStatus,
    ConfigurationStatus,
    DeviceStatus,
    HolderStatus,
    HttpStatus,
    StaleStatus,
    WaitingStatus,
)
from nodeagent.policy import diagnose
from tests.facts import names
from tests.render.statuses import KUBELET, ONE, WELL


def lines(problems: Sequence[Problem] = (), **other: Any) -> list[str]:
    return status.text(WELL._replace(**other).with_findings(problems)).splitlines()


def diagnosed(**other: Any) -> list[str]:
    """The lines below the heading of problems, of a Status in which they are looked for."""
    told = WELL._replace(**other)
    found = status.text(told.with_findings(diagnose.problems(told))).splitlines()
    return found[found.index(output.PROBLEMS) + 1 :]


WELL_END = lines()[-1]


def test_a_daemon_that_is_well_says_so_in_the_end() -> None:
    text = lines()
    names(text[0], "nodeagent 0.1.0", "pid 7", "1 min 1 s")
    names(text[1], "kubelet", "/k.sock")
    names(text[3], "3 functions", "2 groups", "netlink")
    assert re.split(" {2,}", text[5]) == ["RESOURCE", "DEVICES", "HEALTHY", "IN USE", "FREE", "REGISTERED"]
    assert text[6].split() == ["nvidia.com/gpu", "2", "1", "1", "0", "yes"]
    names(text[-3], "0000:65:00.0", "ns/vm")
    assert not WELL_END.startswith(" ")


def test_problems_are_listed_last() -> None:
    text = lines([wrong(ProblemCode.CHANGE, "", text) for text in ("one", "two")])
    assert text[-3:] == [output.PROBLEMS, "  one", "  two"]
    assert WELL_END not in text


def test_a_device_that_waits_for_a_pod_is_told_above_what_is_to_be_looked_at() -> None:
    (gpu,) = WELL.resources
    device = DeviceStatus(DeviceId("a"), False, None, "group-held", "in use by ns/vm")
    text = lines(resources=(gpu._replace(devices=(device,)),))
    assert text[-3:] == ["  nvidia.com/gpu: a: in use by ns/vm", "", WELL_END]


def test_what_to_do_is_told_below_what_is_wrong_and_once_for_several() -> None:
    down = [
        DeviceStatus(DeviceId(each), False, None, "no-driver", f"{each} has no driver", hint)
        for each, hint in (("a", "bind it"), ("b", "bind it"), ("c", "plug it"))
    ]
    (gpu,) = WELL.resources
    hint = "known here: aliases\nconfig.yaml:3: a\nb"
    refused = misconfigured("", "config.yaml:2: weather: unknown key", hint)
    found = diagnosed(
        resources=(gpu._replace(devices=tuple(down)),), configuration=ConfigurationStatus(problem=refused)
    )
    assert found == [
        f"  {diagnose.not_in_force('config.yaml:2: weather: unknown key')}",
        "    to do: known here: aliases",
        "    config.yaml:3: a",
        "    b",
        "  nvidia.com/gpu: a is Unhealthy: a has no driver",
        "  nvidia.com/gpu: b is Unhealthy: b has no driver",
        "    to do: bind it",
        "  nvidia.com/gpu: c is Unhealthy: c has no driver",
        "    to do: plug it",
    ]


def test_devices_with_the_same_reason_are_one_line() -> None:
    (gpu,) = WELL.resources
    kvm = gpu._replace(
        name=ResourceName("example.com/kvm"),
        devices=tuple(
            DeviceStatus(
                DeviceId(f"kvm-{number}"), False, None, "node-missing", "/dev/kvm is missing", "load kvm"
            )
            for number in range(1000)
        ),
    )
    one = gpu._replace(
        devices=(DeviceStatus(DeviceId("a"), False, None, "node-missing", "/dev/kvm is missing"),)
    )
    told = diagnosed(resources=(kvm, one))
    names(told[0], "example.com/kvm", "kvm-0", "996 more", "/dev/kvm is missing")
    assert told[1] == "    to do: load kvm"
    names(told[2], one.name, "a", "/dev/kvm is missing")
    assert told[3:] == []


def test_what_the_kubelet_or_the_configuration_is_to_blame_for_is_told_with_what_to_do() -> None:
    (gpu,) = WELL.resources
    refused = gpu._replace(registered=False, error="the name is taken")
    told = diagnosed(
        resources=(refused._replace(devices=()),),
        kubelet=KUBELET._replace(pod_resources="no answer in time"),
        findings=(wrong(ProblemCode.CHANGE, "", "no card offers x", "change it"),),
    )
    assert [line.split(":")[0].strip() for line in told[1::2]] == ["to do"] * 3
    assert told[1] == "    to do: change it"
    assert "podResources" in told[3]
    assert "journalctl -u kubelet" in told[5]


def test_changes_that_wait_are_told_with_what_they_wait_for() -> None:
    waiting = WaitingStatus("0000:3b:00.0", "remove mdev x", "in use by ns/vm")
    text = lines(changes=NO_CHANGES._replace(waiting=(waiting,)))
    assert text[-3:] == ["  0000:3b:00.0: remove mdev x: in use by ns/vm", "", WELL_END]


def test_a_node_without_resources_or_kubelet_is_told_plainly() -> None:
    text = lines(resources=(), holders={}, kubelet=KUBELET._replace(present=False))
    assert "no resources" in text
    names(text[1], "kubelet", "/k.sock")
    assert text[1] != lines()[1]


def test_a_device_that_is_held_under_another_name_does_not_count_here() -> None:
    holders = {ONE: HolderStatus("ns/vm", ResourceName("example.com/old"))}
    assert lines(holders=holders)[6].split()[3:5] == ["0", "1"]


def test_where_metrics_are_served_is_told_if_they_are() -> None:
    assert not any("metrics" in line for line in lines())
    names(lines(http=HttpStatus("http://[::1]:9481/"))[4], "metrics", "http://[::1]:9481/")


def test_the_cluster_is_told_where_it_is_followed_and_what_it_was_not_told() -> None:
    assert not any("API server" in line for line in lines())
    heard = ClusterStatus(enabled=True, reachable=True, kubevirt="kubevirt/kubevirt")
    line = lines(cluster=heard)[4]
    names(line, "API server", "1970-01-01 00:00:00 UTC", "KubeVirt CR kubevirt/kubevirt")
    assert "Events" not in line
    names(lines(cluster=heard._replace(events_dropped=7))[4], line, "Events", "7")


def test_notes_are_told_and_are_no_problem() -> None:
    idle = note(ProblemCode.IDLE_RULE, "it takes nothing", "change it", "a.b/gpu")
    odd = note(ProblemCode.SETTINGS, "config.yml is not read")
    assert lines([idle, odd])[-7:] == [
        "",
        output.NOTES,
        "  it takes nothing",
        "    to do: change it",
        "  config.yml is not read",
        "",
        WELL_END,
    ]


def test_a_remark_that_is_wrong_has_its_hint_among_the_problems() -> None:
    assert lines([wrong(ProblemCode.NO_IOMMU, "", "no IOMMU", "switch it on")])[-3:] == [
        output.PROBLEMS,
        "  no IOMMU",
        "    to do: switch it on",
    ]


def test_what_only_the_node_still_has_is_told_and_is_no_problem() -> None:
    stale = (StaleStatus("a.b/old"), StaleStatus("a.b/known", "the kubelet still knows it"))
    text = lines(cluster=ClusterStatus(enabled=True, reachable=True, stale=stale))
    old, known = (
        next(line for line in text if line.startswith(f"{name}: ")) for name in ("a.b/old", "a.b/known")
    )
    names(old, "Node", "cluster.staleResources to remove")
    names(known, "Node", "the kubelet still knows it")
    assert "cluster.staleResources" not in known
    assert text[-1] == WELL_END


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (0.9, "0 s"),
        (59.9, "59 s"),
        (60.0, "1 min"),
        (61.4, "1 min 1 s"),
        (3600.0, "1 h"),
        (3659.0, "1 h"),
        (11_520.0, "3 h 12 min"),
        (86_400.0, "1 d"),
        (86_400.0 * 40 + 7200, "40 d 2 h"),
    ],
)
def test_the_two_largest_units_are_said(seconds: float, words: str) -> None:
    assert status.format_duration(seconds) == words
