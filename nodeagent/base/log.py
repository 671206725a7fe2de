# SPDX-License-Identifier: Apache-2.0
"""What nodeagent may say: a closed catalogue of events, and ``event`` to say one.

One event is one line. Its name and MESSAGE_ID never change (``journalctl MESSAGE_ID=…`` finds it in any
version); its fields are fixed; its text may be improved. Log transitions, not visits. Where the lines
go is for ``logsinks``.

A new event: one more entry here, or in ``logrecords``, with an id of its own (``systemd-id128 new``).
"""

from __future__ import annotations

import logging

from nodeagent.base.logevent import LOGGER as LOGGER
from nodeagent.base.logevent import Event as Event
from nodeagent.base.logevent import Value as Value
from nodeagent.base.logevent import event as event
from nodeagent.base.logrecords import CLUSTER_NOT_KEPT as CLUSTER_NOT_KEPT
from nodeagent.base.logrecords import CLUSTER_RECORD_BROKEN as CLUSTER_RECORD_BROKEN
from nodeagent.base.logrecords import DRIVERS_RECORD_BROKEN as DRIVERS_RECORD_BROKEN
from nodeagent.base.logrecords import NAMES_RECORD_BROKEN as NAMES_RECORD_BROKEN
from nodeagent.base.logrecords import NAMES_UNRECORDED as NAMES_UNRECORDED
from nodeagent.base.logrecords import SETTINGS_NOT_KEPT as SETTINGS_NOT_KEPT
from nodeagent.base.logrecords import USB_RECORD_BROKEN as USB_RECORD_BROKEN
from nodeagent.base.logrecords import VGPU_RECORD_BROKEN as VGPU_RECORD_BROKEN

_DEVICE = ("pci_address", "group", "pod")
_ACTION = ("device", "type", "pci_address")


STARTED = Event(
    "started", "27ee919b5c99470997239c18da35bc01", logging.INFO, "nodeagent {version} started on {root}"
)
READY = Event(
    "ready",
    "71b22ec14c9342faa42d8a2280a76485",
    logging.INFO,
    "ready: {resources} resources with {devices} devices",
)
STOPPING = Event("stopping", "e96ec5c59451488593817f378a32372c", logging.INFO, "stopping: {why}")
RESOURCE_ADDED = Event(
    "resource-added",
    "398787be47584afa82681e7206fcf0c1",
    logging.INFO,
    "{resource}: new resource with {devices} devices",
)
RESOURCE_REMOVED = Event(
    "resource-removed",
    "e66d9b6a266d4f818d919db0047eaf37",
    logging.INFO,
    "{resource}: resource removed: {why}",
)
RESOURCE_REGISTERED = Event(
    "resource-registered",
    "b264321f0d2a4165a6378e22e4c40702",
    logging.INFO,
    "{resource}: registered with the kubelet, {devices} devices",
)
REGISTER_FAILING = Event(
    "register-failing",
    "b4e2b4f705f94a768e096f98dc933422",
    logging.WARNING,
    "{resource}: the kubelet does not register it, trying on: {error}",
)
REGISTRATION_LOST = Event(
    "registration-lost",
    "5be0f2b3a9f9497d9f0f7a52c1e6d384",
    logging.WARNING,
    "{resource}: registration lost, registering again: {why}",
)
KUBELET_GONE = Event(
    "kubelet-gone",
    "57caa645c4a940828c454051467ecdb6",
    logging.WARNING,
    "the kubelet is away, waiting for {socket}",
)
KUBELET_BACK = Event(
    "kubelet-back", "c5e1ee69f737447790f908f65e16cfc3", logging.INFO, "the kubelet is back on {socket}"
)
DEVICE_UNHEALTHY = Event(
    "device-unhealthy",
    "ed1dba313672465bac4e97348c33bc33",
    logging.WARNING,
    "{resource}: {device} is Unhealthy: {text}",
    (*_DEVICE, "reason", "hint"),
)
DEVICE_WAITS = Event(
    "device-waits",
    "67b255439c2a408e88697af62e991398",
    logging.INFO,
    "{resource}: {device} is Unhealthy until a pod ends: {text}",
    (*_DEVICE, "reason", "hint"),
)
DEVICE_HEALTHY = Event(
    "device-healthy",
    "2a8f55045ca24e6b8a1610320295e993",
    logging.INFO,
    "{resource}: {device} is Healthy",
    _DEVICE,
)
DEVICE_ADDED = Event(
    "device-added", "c3f0a3c6d5d84f0a8f0f6a4d4f1b7a52", logging.INFO, "{resource}: {device} is new", _DEVICE
)
DEVICE_GONE = Event(
    "device-gone",
    "c0dd6c249fd940d49f2e6a0d20063db3",
    logging.INFO,
    "{resource}: {device} is listed no more: {why}",
    _DEVICE,
)
ALLOCATED = Event(
    "allocated",
    "89b09ebc297446c1ad12f913c668eb8d",
    logging.INFO,
    "{resource}: gave {device}",
    ("group", "pod"),
)
ALLOCATE_REFUSED = Event(
    "allocate-refused",
    "8b11ece7c415455faa0f7359d98c63d3",
    logging.WARNING,
    "{resource}: refused {device}: {why}",
    ("group", "pod", "reason"),
)
DEVICE_HELD = Event(
    "device-held",
    "042b89b91b224c98abe8956ff9607365",
    logging.INFO,
    "{resource}: {text}",
    ("device", "group", "pod"),
)
DEVICE_RELEASED = Event(
    "device-released",
    "b16d194181124b88bae9cabba61fd823",
    logging.INFO,
    "{resource}: {text}",
    ("device", "group", "pod"),
)
HOLDERS_UNKNOWN = Event(
    "holders-unknown",
    "0bccc10d7c7446f4a8c63626e8e638b4",
    logging.WARNING,
    "cannot ask the kubelet who holds what, taking all as held: {error}",
)
HOLDERS_KNOWN = Event(
    "holders-known",
    "5d5595fe3ac44eb4b9dc62bdaa192ecf",
    logging.INFO,
    "the kubelet tells again who holds what",
)
CONFIG_RELOADED = Event(
    "config-reloaded", "20cd486520824c5bbb4202beff9b846d", logging.INFO, "settings loaded again: {changed}"
)
CONFIG_REFUSED = Event(
    "config-refused",
    "8a73431fc4394484beddab8866c0da56",
    logging.ERROR,
    "the new settings are wrong, the old ones stay: {error}",
    ("hint",),
)
CONFIG_LAST_GOOD = Event(
    "config-last-good",
    "c41b7be09f3d4e0d8a5c6a2f91d7e803",
    logging.ERROR,
    "a file is wrong, and nodeagent starts with the last good settings: {error}",
    ("hint",),
)
CONFIG_RIGHT = Event(
    "config-right", "4f0c3dd7a05b4c55a7f6c1c6e6b2d91e", logging.INFO, "the settings are right again: {what}"
)
CONFIG_WARNING = Event(
    "config-warning", "ddb71bc8a8e9419ababe8718246cb68f", logging.WARNING, "settings: {text}"
)
SUBSYSTEM_FAILED = Event(
    "subsystem-failed",
    "7a41c7a38d114e0fb591a2bba7124a9f",
    logging.ERROR,
    "{subsystem} failed, starting it again in {seconds} s: {error}",
)
SUBSYSTEM_STUCK = Event(
    "subsystem-stuck", "b1ed298334fc4e99b94bca9e2af829ae", logging.ERROR, "{subsystem} does not go on: {why}"
)
SUBSYSTEM_MOVES = Event(
    "subsystem-moves", "c5c57b15e68c4b9d9edefe85096b5046", logging.WARNING, "{subsystem} goes on"
)
LINES_LEFT_OUT = Event(
    "lines-left-out",
    "6f87df1e8d3b44ed91ee6764754980d6",
    logging.WARNING,
    "{count} more lines of {kind} were left out within {seconds} s: {what}",
)
LINES_LOST = Event(
    "lines-lost",
    "b67a5ec2ee6649b48fb54c7b88e23670",
    logging.WARNING,
    "{count} lines of this log are lost: whoever reads it was too slow",
)
NO_DESCRIPTORS = Event(
    "no-descriptors",
    "8715abd8cb704c229cd793627bb94cf2",
    logging.ERROR,
    "no connection can be accepted, trying on: {error}",
    ("hint",),
    most=1,
)
EVENTS_LOST = Event(
    "events-lost",
    "6f7e03f047a948e082b1ec1f17d5bf18",
    logging.WARNING,
    "events of {source} were lost, reading everything again",
)
EVENTS_UNAVAILABLE = Event(
    "events-unavailable",
    "e98d740d9853403197398f2c09a1b132",
    logging.WARNING,
    "no events from {source}, looking every {seconds} s instead: {error}",
)
HOST_READ_SLOW = Event(
    "host-read-slow",
    "1d76aa32ad494ac4bc27c1a053af3a0a",
    logging.WARNING,
    "reading {what} hangs for {seconds} s, going on without it",
    ("device", "pci_address"),
)
HOST_NOT_READ = Event(
    "host-not-read", "b436385551454dfcbb1b0d3759b585a9", logging.ERROR, "{error}", ("hint",)
)
HOST_READ_BACK = Event(
    "host-read-back",
    "7566217c1d38415eaf801839ef5429fe",
    logging.INFO,
    "reading {what} works again",
    ("device", "pci_address"),
)
NO_IOMMU = Event("no-iommu", "edb49fca2fd14e42b8c20a33d5d7ad88", logging.WARNING, "{text}", ("hint",))
NO_VFIO = Event("no-vfio", "ce4e5f45647f4f51b4d8ce0ef27b9901", logging.WARNING, "{text}", ("hint",))
NOTE = Event("note", "4c0d7e59a1b24a0f9d6be3f2871c5a08", logging.INFO, "{text}", ("hint",))
AER_WARNING = Event(
    "aer-warning",
    "ef81d33a448e435184a2dc298e67362d",
    logging.WARNING,
    "{pci_address}: the kernel reports a PCIe error: {text}",
    ("device", "group"),
)
CDI_FAILED = Event(
    "cdi-failed", "812ce234d1c74a0f8479d6beefd9c925", logging.ERROR, "{resource}: {error}", ("path", "hint")
)
REQUEST_ACCEPTED = Event(
    "request-accepted",
    "bbebf1ac0520b5ef741ea8e1b66a31b0",
    logging.INFO,
    "process {process} has asked to {asking} {device}, and it is begun",
)
REQUEST_REFUSED = Event(
    "request-refused",
    "c577ea8886719a975e702c1449ebfe56",
    logging.WARNING,
    "process {process} has asked to {asking} {what}, and is refused: {error}",
    ("device", "hint"),
)
ACTION_DONE = Event(
    "action-done", "5d33e3dcd33b4c7e9e4d528580208e9e", logging.INFO, "done: {action}: {why}", _ACTION
)
ACTION_FAILED = Event(
    "action-failed",
    "3b07bc8efaca4f4e9545f33061ce5a45",
    logging.WARNING,
    "cannot {action}, trying again from time to time: {error}",
    (*_ACTION, "hint"),
)
ACTION_WAITING = Event(
    "action-waiting",
    "27ee9ebc1fa444d0b00dd1889a5d7f54",
    logging.INFO,
    "waiting to {action}: {why}",
    (*_ACTION, "group", "pod"),
)
HTTP_SERVED = Event(
    "http-served", "ea3a94f0d45b471190cc2f5383d6f49f", logging.INFO, "HTTP is served at {address}"
)
HTTP_REFUSED = Event(
    "http-refused",
    "7db2dfc10b3f4be6951cb3ee08b0a948",
    logging.WARNING,
    "{error}, trying again from time to time",
    ("hint",),
)
HTTP_FAILED = Event(
    "http-failed",
    "d2323dbdedad45bba0564c52262168d0",
    logging.ERROR,
    "HTTP: {path} cannot be answered: {error}",
)
CLUSTER_AWAY = Event(
    "cluster-away",
    "dca5e4c9e0114749abb6f940506c934e",
    logging.WARNING,
    "{what} of the cluster cannot be followed, going on with what is known of them: {error}",
    ("hint",),
)
CLUSTER_BACK = Event(
    "cluster-back",
    "59335e801552444f98c506f1e460d4e6",
    logging.INFO,
    "{what} of the cluster are followed again",
)
CLUSTER_REFUSES = Event(
    "cluster-refuses",
    "211fed251cf74df79f0cf6463ac9424b",
    logging.WARNING,
    "{what} cannot be written to the cluster: {error}",
    ("hint",),
)
CLUSTER_ACCEPTS = Event(
    "cluster-accepts",
    "5bf130a7ebf147f59da3871e85e90e5c",
    logging.INFO,
    "{what} can be written to the cluster again",
)
EVENTS_LEFT_OUT = Event(
    "events-left-out",
    "8acce955033c4fa596e242f7b104fa95",
    logging.WARNING,
    "more happens than is told as Events: what they leave out is in this log, and counted in the status",
)
STALE_RESOURCE = Event(
    "stale-resource",
    "f5d2a6c0b8134b6f9a7c3e51d0e42b96",
    logging.INFO,
    "{resource}: the Node still counts it, as 0: it was offered here once, and nobody gives it any more",
    ("hint",),
)
STALE_RESOURCE_REMOVED = Event(
    "stale-resource-removed",
    "0c7b9e1d5a2f4e83b6d40f9182a7c35e",
    logging.INFO,
    "{resource}: taken from the Node, where it was counted as 0 and nobody gave it",
)
NAME_KEPT = Event(
    "name-kept",
    "8701b66935c54621910339443436ecee",
    logging.WARNING,
    "{resource} keeps its name while a pod has, or may have, a device by it; a later start makes it {name}",
    ("hint",),
)
NAME_CHANGED = Event(
    "name-changed",
    "4859802937524419933f7f02c254cfe4",
    logging.WARNING,
    "{resource} is called {name} now: what names are made of says something else",
    ("hint",),
)
PLAN_PROBLEM = Event("plan-problem", "9c1f0a6be26e44f6b7d2c35d0e81f4aa", logging.WARNING, "{text}", ("hint",))


def catalogue() -> tuple[Event, ...]:
    """All events, in the order of this file."""
    return tuple(value for value in globals().values() if isinstance(value, Event))
