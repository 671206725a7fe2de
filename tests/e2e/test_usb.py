# SPDX-License-Identifier: Apache-2.0
"""USB devices of real pods: the node in the container, its owner, and what KubeVirt's own code attaches."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from nodeagent.sim.host import SimulatedHost
from tests.e2e import waiting
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Given, Pods
from tests.e2e.resources import only
from tests.sim.usb import STICK, Plug, UsbBuses

# no hyphen: the shell of the container would keep the variable from the reader
NAME, ENV = "kubevirt.io/stick", "USB_RESOURCE_KUBEVIRT_IO_STICK"
ROW = "ls -lnR /dev/bus/usb"


def attached(given: Given) -> list[tuple[str | None, str | None]]:
    """Bus and number of the <hostdev> elements in what a container printed."""
    start, end = given.text.index("<devices>"), given.text.index("</devices>") + len("</devices>")
    found = ElementTree.fromstring(given.text[start:end]).findall("hostdev")
    assert all(each.get("type") == "usb" for each in found), given.text
    places = [each.find("source/address") for each in found]
    return [(each.get("bus"), each.get("device")) for each in places if each is not None]


def owners(given: Given) -> list[tuple[str, str]]:
    """User and group of each USB node that the container sees."""
    rows = (line.split() for line in given.text.splitlines() if line.startswith("c"))
    return [(words[2], words[3]) for words in rows]


def test_a_pod_sees_its_usb_device_as_qemus_own_and_virt_launcher_attaches_it(
    running: Cluster, host: SimulatedHost, daemon: Daemon, pods: Pods
) -> None:
    usb = UsbBuses(host.tree)
    usb.plug("3-1", STICK._replace(serial="A"), 20)
    usb.plug("3-2", STICK._replace(serial="B"), 21)
    daemon.configure(only({"name": NAME, "usb": [{"vendors": ["46f4"], "products": ["0001"]}]}))
    daemon.start()
    running.await_counts(NAME, 2, 2)
    given = pods.run("stick", {NAME: 2}, f"/bin/launcher hostDevices {NAME} {NAME}; {ROW}")
    places = [tuple(place.split(":")) for place in given.env[ENV].split(",")]
    assert sorted(places) == [("3", "20"), ("3", "21")]
    assert attached(given) == places
    assert owners(given) == [("107", "107")] * 2


def test_a_device_that_gets_another_number_is_no_longer_allocatable_until_its_pod_has_gone(
    running: Cluster, host: SimulatedHost, daemon: Daemon, pods: Pods
) -> None:
    usb = UsbBuses(host.tree)
    usb.plug("3-1", STICK._replace(serial="A"), 20)
    usb.plug("3-2", Plug("1234", "5678"), 22)
    daemon.configure(only({"name": NAME, "usb": [{"vendors": ["46f4"]}]}))
    daemon.start()
    running.await_counts(NAME, 1, 1)
    pods.run("first", {NAME: 1}, ROW)
    number = usb.renumber("3-1")
    running.await_counts(NAME, 1, 0)
    assert daemon.device("46f4:0001-A")["reason"] == "re-enumerated"
    pods.delete("first")
    running.await_counts(NAME, 1, 1)
    waiting.until(lambda: daemon.device("46f4:0001-A")["healthy"], "it can be given again")
    again = pods.run("again", {NAME: 1}, f"/bin/launcher hostDevices {NAME}; {ROW}")
    assert again.env[ENV] == f"3:{number}"
    assert attached(again) == [("3", str(number))]
    assert owners(again) == [("107", "107")]
