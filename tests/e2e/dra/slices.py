# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices of our driver: read, waited for and watched; and the kubelet's calls, from its log."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e import node, waiting
from tests.e2e.api import Api, Stream
from tests.e2e.dra.objects import DRIVER, SLICES

POOL = f"{DRIVER}/{node.NAME}"
_SELECTED = f"fieldSelector=spec.driver%3D{DRIVER},spec.nodeName%3D{node.NAME}"
_CALLS = {
    "prepare": "Calling NodePrepareResources rpc",
    "unprepare": "Calling NodeUnprepareResource rpc",
}  # pkg/kubelet/cm/dra/plugin/dra_plugin.go
_CLOCK = re.compile(r"^[IWE]\d{4} (\d\d):(\d\d):(\d\d\.\d+) ")


def name_of(address: str) -> str:
    """The name of a PCI function in a slice."""
    return "pci-" + address.replace(":", "-").replace(".", "-")


def slices(api: Api) -> list[Any]:
    """Our slices of the node."""
    return list(api.get(f"{SLICES}?{_SELECTED}")["items"])


def devices(api: Api) -> dict[str, Any]:
    """Name → device, of a pool that is complete; else none."""
    found = slices(api)
    newest = max((each["spec"]["pool"]["generation"] for each in found), default=0)
    found = [each for each in found if each["spec"]["pool"]["generation"] == newest]
    if not found or len(found) != found[0]["spec"]["pool"]["resourceSliceCount"]:
        return {}
    return {device["name"]: device for each in found for device in each["spec"].get("devices", ())}


def await_devices(api: Api, names: Iterable[str], seconds: float = 20.0) -> dict[str, Any]:
    """Wait until exactly these devices are published; return them."""
    wanted = set(names)

    def published() -> tuple[dict[str, Any]] | None:
        found = devices(api)
        return (found,) if found.keys() == wanted else None

    try:
        (found,) = waiting.until(published, f"published: {', '.join(sorted(wanted))}", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}; instead: {sorted(devices(api))}") from error
    return found


class Event(NamedTuple):
    """A change of a slice: its time, ADDED, MODIFIED or DELETED, and the slice."""

    at: float
    type: str
    slice: Any


class Watch:
    """The changes of our slices from now on."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()

    def follow(self, stream: Stream) -> None:
        """Note all events until the stream ends."""
        for event in stream.events():
            with self._lock:
                self.events.append(Event(time.time(), event["type"], event["object"]))

    def since(self, moment: float) -> list[Event]:
        """The events after that moment."""
        with self._lock:
            return [event for event in self.events if event.at >= moment]


@contextmanager
def watching(api: Api) -> Iterator[Watch]:
    """Watch our slices during the block, from the state at its start."""
    version = api.get(f"{SLICES}?{_SELECTED}")["metadata"]["resourceVersion"]
    watch = Watch()
    path = f"{SLICES}?{_SELECTED}&watch=true&resourceVersion={version}"
    with api.watch(path) as stream, ThreadPoolExecutor(1) as threads:
        done = threads.submit(watch.follow, stream)
        try:
            yield watch
        finally:
            stream.stop()
        done.result()


class KubeletLog:
    """What the kubelet's log says after the moment at which this was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size

    def calls(self, name: str) -> list[str]:
        """The calls of NodePrepareResources (``prepare``) or NodeUnprepareResources (``unprepare``)."""
        return [line for line in self._lines() if _CALLS[name] in line]

    def prepare_durations(self) -> list[float]:
        """The seconds of each call of NodePrepareResources that has ended, in the order of the calls.

        The calls must not overlap.
        """
        lines = [line for line in self._lines() if "alling NodePrepareResources rpc" in line]
        began = [_time(line) for line in lines if "Done" not in line]
        ended = [_time(line) for line in lines if "Done" in line]
        return [end - begin for begin, end in zip(began, ended, strict=False)]

    def registered_at(self) -> float | None:
        """When our plugin was registered last, in seconds since the epoch; None if it was not."""
        found = [line for line in self._lines() if "Registered DRA plugin" in line and DRIVER in line]
        return _time(found[-1]) if found else None

    def _lines(self) -> list[str]:
        with self._path.open("rb") as log:
            log.seek(self._start)
            return log.read().decode(errors="replace").splitlines()


def _time(line: str) -> float:
    """The time of a line of klog, which has no date, zone or year: that of today."""
    found = _CLOCK.match(line)
    assert found is not None, line
    now = time.localtime()
    hours, minutes, seconds = int(found[1]), int(found[2]), float(found[3])
    midnight = time.mktime((now.tm_year, now.tm_mon, now.tm_mday, 0, 0, 0, 0, 0, -1))
    return midnight + hours * 3600 + minutes * 60 + seconds
