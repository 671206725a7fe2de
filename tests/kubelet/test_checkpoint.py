# SPDX-License-Identifier: Apache-2.0
"""The kubelet's checkpoint: what the fake kubelet writes, what old kubelets wrote, and any garbage."""

from __future__ import annotations

import base64
import itertools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.checkpoint import AllocatedDevices, Checkpoint, CheckpointFile, Entry, known_resources
from nodeagent.kubelet.socket_dir import CHECKPOINT
from nodeagent.model.ids import GroupNumber, ResourceName
from nodeagent.sim.kubelet.state import Pod
from tests.sim.plugin import RESOURCE, Plugin, device, kubelet_with

R = ResourceName(RESOURCE)


async def test_what_pods_hold_is_read_with_its_numa_node(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a", 1), device("b"))) as kubelet:
        checkpoint = CheckpointFile(str(kubelet.paths.plugins / CHECKPOINT))
        assert checkpoint.read().entries == ()
        pod = await kubelet.admit(Pod("ns", "p", [{RESOURCE: 2}]))
        assert set(checkpoint.read().entries) == {Entry(pod.uid, R, "a", 1), Entry(pod.uid, R, "b", None)}


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    path.write_text(document(["a"]))
    checkpoint = CheckpointFile(str(path))
    assert checkpoint.read().entries is checkpoint.read().entries


def test_a_file_that_is_damaged_or_missing_is_told_apart_from_one_without_entries(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    checkpoint = CheckpointFile(str(path))
    assert (checkpoint.read().missing, checkpoint.read().readable) == (True, False)
    path.write_text(document([]))
    assert (checkpoint.read().missing, checkpoint.read().readable) == (False, True)
    for damaged in ("{", json.dumps({"Data": {"Entries": []}})):
        path.write_text(damaged)
        found = checkpoint.read()
        assert (found.entries, found.readable, found.missing) == ((), False, False)
        assert found.stamp is not None
    path.unlink()
    assert checkpoint.read().stamp is None


def test_entries_that_are_understood_count_also_where_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry({"-1": ["a"]}), {"PodUID": "v"}]}}))
    found = CheckpointFile(str(path)).read()
    assert (found.entries, found.readable) == ((Entry("u", R, "a", None),), False)


def test_what_is_read_is_of_the_file_whose_stamp_it_has_however_often_that_is_written(tmp_path: Path) -> None:
    checkpoint = CheckpointFile(str(tmp_path / CHECKPOINT))
    document = json.dumps({"Data": {"PodDeviceEntries": [entry({"-1": ["a"]})]}})
    nothing = json.dumps({"Data": {"PodDeviceEntries": None}})
    entered: dict[int, tuple[Entry, ...]] = {len(document): (Entry("u", R, "a", None),), len(nothing): ()}
    contents = itertools.cycle((document, nothing))
    read: list[Checkpoint] = []
    with ThreadPoolExecutor() as pool:
        writer = pool.submit(written, tmp_path / CHECKPOINT, contents, lambda: len(read) < 5000)
        while len(read) < 5000:
            read.append(checkpoint.read())
        writer.result()
    assert {each.stamp[2] for each in read if each.stamp} == entered.keys()
    assert [each for each in read if each.stamp and each.entries != entered[each.stamp[2]]] == []


def test_where_times_are_whole_seconds_a_file_may_look_like_one_before_it(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    checkpoint = CheckpointFile(str(path))
    for ids in (["a"], ["b"]):
        put(path, ids, at=1.0, anew=False)
        assert [each.device_id for each in checkpoint.read().entries] == ids


def test_a_look_at_an_old_file_that_takes_long_makes_no_new_file_of_the_one_that_is_known(
    tmp_path: Path,
) -> None:
    """A pipe keeps it there while another one begins."""
    path = tmp_path / CHECKPOINT
    os.mkfifo(path)
    checkpoint = CheckpointFile(str(path))
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(checkpoint.read)
        with path.open("w") as pipe:
            put(path, ["new"], at=1.5)
            quick = pool.submit(checkpoint.read)
            wait([quick], timeout=0.2)  # it waits for the slow one
            pipe.write(document(["old"]))
        assert [each.device_id for each in slow.result().entries] == ["old"]
        assert [each.device_id for each in quick.result().entries] == ["new"]
    assert checkpoint.read() == quick.result()


def put(path: Path, ids: list[str], at: float, *, anew: bool = True) -> None:
    """Write a file that names these, changed at that time of the clock."""
    beside = path.with_name(".1") if anew else path
    beside.write_text(document(ids))
    os.utime(beside, (at, at))
    beside.rename(path)


def document(ids: list[str]) -> str:
    return json.dumps({"Data": {"PodDeviceEntries": [entry({"-1": ids})]}})


def written(path: Path, contents: Iterator[str], goes_on: Callable[[], bool]) -> None:
    """Write the file anew with one after the other, as the kubelet does: beside it, then a rename."""
    while goes_on():
        beside = path.with_name(".1")
        beside.write_text(next(contents))
        beside.rename(path)


def entry(ids: object, **other: object) -> dict[str, object]:
    return {"PodUID": "u", "ContainerName": "c", "ResourceName": RESOURCE, "DeviceIDs": ids, **other}


def group(number: str, node: str) -> dict[str, object]:
    """An entry of virt-handler's: its ids are numbers of groups, and the answer has the group's node."""
    response = v1beta1.ContainerAllocateResponse(devices=[v1beta1.DeviceSpec(node, node, "mrw")])
    return entry({"-1": [number]}, AllocResp=base64.b64encode(bytes(response)).decode())


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"Data": {"PodDeviceEntries": [entry(["a"])]}}, ()),
        ({"Data": {"PodDeviceEntries": [entry(7), entry({"0": ["a"]})]}}, (Entry("u", R, "a", 0),)),
        ({"Data": {"PodDeviceEntries": ["?", entry({"x": ["a"]}), {}]}}, ()),
        ({"Data": {"PodDeviceEntries": None}}, ()),
        ({"Data": []}, ()),
        ([], ()),
        ("no JSON at all", ()),
        ("[" * 100_000, ()),
        (
            {
                "Data": {
                    "PodDeviceEntries": [
                        entry({"-1": ["12"]}),
                        group("13", "/dev/vfio/130"),
                        group("14", "/dev/vfio/14"),
                    ]
                }
            },
            (Entry("u", R, "14", None, AllocatedDevices((), frozenset({GroupNumber(14)}))),),
        ),
    ],
)
def test_any_content_is_borne(tmp_path: Path, document: object, expected: tuple[Entry, ...]) -> None:
    path = tmp_path / CHECKPOINT
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_text(text)
    assert CheckpointFile(str(path)).read().entries == expected
    path.write_bytes(b"\xff" + text.encode())
    assert CheckpointFile(str(path)).read().entries == ()


@pytest.mark.parametrize(
    ("data", "known"),
    [
        ({"RegisteredDevices": {"a.b/c": [], "a.b/d": ["0"]}, "PodDeviceEntries": None}, {"a.b/c", "a.b/d"}),
        ({"RegisteredDevices": None, "PodDeviceEntries": [{"ResourceName": "a.b/held"}]}, {"a.b/held"}),
        ({"RegisteredDevices": {}, "PodDeviceEntries": []}, set()),
        ({"PodDeviceEntries": []}, None),
        ({"RegisteredDevices": {}, "PodDeviceEntries": [{}]}, None),
        ([], None),
    ],
)
def test_the_kubelet_knows_what_is_registered_and_what_pods_hold(
    tmp_path: Path, data: Any, known: set[str] | None
) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    assert known_resources(str(path)) is None
    path.write_text(json.dumps({"Data": data}))
    assert known_resources(str(path)) == known
    for damaged in ("{", "[" * 100_000):
        path.write_text(damaged)
        assert known_resources(str(path)) is None
