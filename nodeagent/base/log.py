# SPDX-License-Identifier: Apache-2.0
"""The log: a fixed catalogue of events, and ``event``, which logs one with the standard logging module.

Each event is one line. The MESSAGE_ID and the name of an event never change, so ``journalctl MESSAGE_ID=…``
works in every version. The fields of an event are fixed; its text may be improved. Only state changes are
logged. ``log_handlers`` writes the lines.

To add an event, add a constant here with a new id (``systemd-id128 new``), and its texts to
``render/logs.toml``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from nodeagent.base.errors import InternalError

Value = str | int | tuple[str, ...]
"""The value of a field, or several values that can be searched individually."""

LOGGER = "nodeagent"
MANY = 16  # most values of one field that a line shows
_FIELD = re.compile(r"{(\w+)}")
_ABOUT = ("resource", "device", "action", "subsystem", "pci_address", "object", "source", "path")


class Event(NamedTuple):
    """One kind of log line: stable MESSAGE_ID, level, and text, which contains the required fields.

    ``also`` lists the optional fields. ``hint`` is the fix, with which the line ends. ``most``: the maximum
    number of lines about one subject per minute, if it differs from the default.
    """

    id: str
    level: int
    text: str
    also: tuple[str, ...] = ()
    most: int | None = None

    @property
    def name(self) -> str:
        """Return the stable name: the name of the constant, such as ``device-healthy``."""
        return _names()[self.id]

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the required fields."""
        return tuple(_FIELD.findall(self.text))

    def subject(self, fields: Mapping[str, Value]) -> str:
        """Return the subject of a line; the limit for repeated lines applies to one kind and subject."""
        named = " ".join(_words(fields[name]) for name in _ABOUT if name in fields)
        return named or _words(fields.get("text", ""))


def event(kind: Event, bug: BaseException | None = None, /, **given: Value | None) -> None:
    """Log an event; for an unexpected error ``bug``, its traceback follows.

    Fields with the value None or () are omitted. :raises InternalError: if a field is missing or unknown.
    """
    fields = {name: value for name, value in given.items() if value not in (None, ())}
    missing = [name for name in kind.fields if name not in fields]
    foreign = [name for name in fields if name not in kind.fields and name not in kind.also]
    if missing or foreign:
        raise InternalError(f"log event {kind.name}: missing fields {missing}, unknown fields {foreign}")
    logger = logging.getLogger(LOGGER)
    if logger.isEnabledFor(kind.level):
        hint = f"; {fields['hint']}" if fields.get("hint") else ""
        text = kind.text.format_map({name: _words(value) for name, value in fields.items()})
        extra = {"event": kind, "fields": fields}
        logger.log(kind.level, "%s", f"{text}{hint}", extra=extra, exc_info=bug)


def catalogue() -> tuple[Event, ...]:
    """Return all events, in the order of this file."""
    return tuple(value for value in globals().values() if isinstance(value, Event))


@cache
def _names() -> Mapping[str, str]:
    """Return the name of each event by MESSAGE_ID."""
    constants = globals().items()
    return {each.id: name.lower().replace("_", "-") for name, each in constants if isinstance(each, Event)}


def _words(value: Value) -> str:
    """Return the value as text; of many values only the first ones, since the field contains all."""
    if not isinstance(value, tuple):
        return str(value)
    left_out = len(value) - MANY
    return ",".join(value[:MANY]) + (f" and {left_out} more" if left_out > 0 else "")


def _info(message_id: str, text: str, *also: str) -> Event:
    return Event(message_id, logging.INFO, text, also)


def _warning(message_id: str, text: str, *also: str) -> Event:
    return Event(message_id, logging.WARNING, text, also)


def _error(message_id: str, text: str, *also: str) -> Event:
    return Event(message_id, logging.ERROR, text, also)


_DEVICE = ("pci_address", "group", "pod")
_ACTION = ("device", "type", "pci_address")

STARTED = _info("27ee919b5c99470997239c18da35bc01", "nodeagent {version} started on {root}")
READY = _info("71b22ec14c9342faa42d8a2280a76485", "ready: {resources} resources with {devices} devices")
STOPPING = _info("e96ec5c59451488593817f378a32372c", "stopping: {cause}")
RESOURCE_ADDED = _info("398787be47584afa82681e7206fcf0c1", "{resource}: new resource with {devices} devices")
RESOURCE_REMOVED = _info("e66d9b6a266d4f818d919db0047eaf37", "{resource}: resource removed: {cause}")
RESOURCE_REGISTERED = _info(
    "b264321f0d2a4165a6378e22e4c40702", "{resource}: registered with the kubelet, {devices} devices"
)
REGISTER_FAILING = _warning(
    "b4e2b4f705f94a768e096f98dc933422", "{resource}: the kubelet refuses the registration, retrying: {error}"
)
REGISTRATION_LOST = _warning(
    "5be0f2b3a9f9497d9f0f7a52c1e6d384", "{resource}: registration lost, registering again: {cause}"
)
DRA_REGISTERED = _info(
    "1e5a021a21b749ddb120e369b2301495", "{subsystem}: DRA driver registered with the kubelet"
)
DRA_REGISTER_FAILING = _warning(
    "7d65bc400a974aa78303bdfb48125ad1",
    "{subsystem}: the kubelet refuses the DRA driver, waiting for its next attempt: {error}",
)
DRA_GATE_MISSING = _warning(
    "a2bcf1fb391d4de48cf5cdb0232f8f92",
    "the API server drops fields of ResourceSlices, because the feature gate {object} is disabled",
)
DRA_SLICES_CONTESTED = _warning(
    "e49eca58e24e46e5907504d3ca4126a0",
    "another program changes the ResourceSlices of this node again and again; correcting them less often",
)
CLAIM_PREPARED = _info("c2a1de7d2f0b4f0f8a5d3c0f1c7e9b64", "{object}: prepared with {device}")
CLAIM_RELEASED = _info("5b8e0d9a3f424f5e9a0c6d7b21f4e385", "{object}: released {device}")
CLAIM_REFUSED = _warning("e7d4b19c6a5f4c2d8b3e0f9a17c5d26b", "{object}: cannot be prepared: {error}")
CLAIM_FILES_LOST = _warning(
    "b73f09dbfc79440581f8d587f0eff075",
    "{object}: cannot write its files again, so its containers cannot restart: {error}",
    "hint",
)
KUBELET_UNREACHABLE = _warning(
    "57caa645c4a940828c454051467ecdb6", "kubelet unreachable, waiting for {socket}"
)
KUBELET_REACHABLE = _info("c5e1ee69f737447790f908f65e16cfc3", "kubelet reachable again on {socket}")
DEVICE_UNHEALTHY = _warning(
    "ed1dba313672465bac4e97348c33bc33",
    "{resource}: {device} is Unhealthy: {text}",
    *_DEVICE,
    "reason",
    "hint",
)
DEVICE_WAITING = _info(
    "67b255439c2a408e88697af62e991398",
    "{resource}: {device} is Unhealthy until a pod ends: {text}",
    *_DEVICE,
    "reason",
    "hint",
)
DEVICE_HEALTHY = _info("2a8f55045ca24e6b8a1610320295e993", "{resource}: {device} is Healthy", *_DEVICE)
DEVICE_ADDED = _info("c3f0a3c6d5d84f0a8f0f6a4d4f1b7a52", "{resource}: {device} is new", *_DEVICE)
DEVICE_REMOVED = _info(
    "c0dd6c249fd940d49f2e6a0d20063db3", "{resource}: {device} is no longer advertised: {cause}", *_DEVICE
)
ALLOCATED = _info("89b09ebc297446c1ad12f913c668eb8d", "{resource}: allocated {device}", "group", "pod")
ALLOCATE_REFUSED = _warning(
    "8b11ece7c415455faa0f7359d98c63d3",
    "{resource}: refused to allocate {device}: {cause}",
    "group",
    "pod",
    "reason",
)
DEVICE_IN_USE = _info("042b89b91b224c98abe8956ff9607365", "{resource}: {text}", "device", "group", "pod")
DEVICE_RELEASED = _info("b16d194181124b88bae9cabba61fd823", "{resource}: {text}", "device", "group", "pod")
POD_RESOURCES_UNAVAILABLE = _warning(
    "0bccc10d7c7446f4a8c63626e8e638b4", "PodResources unavailable, all devices count as in use: {error}"
)
POD_RESOURCES_AVAILABLE = _info("5d5595fe3ac44eb4b9dc62bdaa192ecf", "PodResources available again")
CONFIG_RELOADED = _info("20cd486520824c5bbb4202beff9b846d", "configuration reloaded: {changed}")
CONFIG_REFUSED = _error(
    "8a73431fc4394484beddab8866c0da56",
    "new configuration is invalid, the last valid one stays active: {error}",
    "hint",
)
CONFIG_LAST_GOOD = _error(
    "c41b7be09f3d4e0d8a5c6a2f91d7e803",
    "invalid configuration file, starting with the last valid configuration: {error}",
    "hint",
)
CONFIG_VALID = _info("4f0c3dd7a05b4c55a7f6c1c6e6b2d91e", "configuration is valid again: {text}")
CONFIG_WARNING = _warning("ddb71bc8a8e9419ababe8718246cb68f", "configuration: {text}")
SUBSYSTEM_FAILED = _error(
    "7a41c7a38d114e0fb591a2bba7124a9f", "{subsystem} failed, restarting it in {seconds} s: {error}"
)
SUBSYSTEM_STUCK = _error("b1ed298334fc4e99b94bca9e2af829ae", "{subsystem} is stuck: {cause}")
SUBSYSTEM_RECOVERED = _warning("c5c57b15e68c4b9d9edefe85096b5046", "{subsystem} works again")
LINES_SUPPRESSED = _warning(
    "6f87df1e8d3b44ed91ee6764754980d6", "suppressing further {kind} lines for {seconds} s: {subject}"
)
LINES_LOST = _warning(
    "b67a5ec2ee6649b48fb54c7b88e23670", "{count} log lines were lost: the log reader was too slow"
)
NO_DESCRIPTORS = _error(
    "8715abd8cb704c229cd793627bb94cf2", "cannot accept connections, retrying: {error}", "hint"
)._replace(most=1)
EVENTS_LOST = _warning(
    "6f7e03f047a948e082b1ec1f17d5bf18", "events of {source} were lost, rescanning everything"
)
EVENTS_UNAVAILABLE = _warning(
    "e98d740d9853403197398f2c09a1b132", "no events from {source}, polling every {seconds} s instead: {error}"
)
HOST_READ_SLOW = _warning(
    "1d76aa32ad494ac4bc27c1a053af3a0a",
    "reading {object} hangs for {seconds} s, continuing without it",
    "device",
    "pci_address",
)
HOST_READ_FAILED = _error("b436385551454dfcbb1b0d3759b585a9", "{error}", "hint")
HOST_READ_RECOVERED = _info(
    "7566217c1d38415eaf801839ef5429fe", "reading {object} works again", "device", "pci_address"
)
NO_IOMMU = _warning("edb49fca2fd14e42b8c20a33d5d7ad88", "{text}", "hint")
NO_VFIO = _warning("ce4e5f45647f4f51b4d8ce0ef27b9901", "{text}", "hint")
NOTE = _info("4c0d7e59a1b24a0f9d6be3f2871c5a08", "{text}", "hint")
AER_WARNING = _warning(
    "ef81d33a448e435184a2dc298e67362d",
    "{pci_address}: the kernel reports a PCIe error: {text}",
    "device",
    "group",
)
CDI_FAILED = _error("812ce234d1c74a0f8479d6beefd9c925", "{resource}: {error}", "path", "hint")
REQUEST_ACCEPTED = _info(
    "bbebf1ac0520b5ef741ea8e1b66a31b0", "process {process} requested to {operation} {device}: accepted"
)
REQUEST_REFUSED = _warning(
    "c577ea8886719a975e702c1449ebfe56",
    "process {process} requested to {operation} {object}: refused: {error}",
    "device",
    "hint",
)
ACTION_DONE = _info("5d33e3dcd33b4c7e9e4d528580208e9e", "done: {action}: {cause}", *_ACTION)
ACTION_FAILED = _warning(
    "3b07bc8efaca4f4e9545f33061ce5a45",
    "cannot {action}, retrying: {error}",
    *_ACTION,
    "hint",
)
ACTION_WAITING = _info(
    "27ee9ebc1fa444d0b00dd1889a5d7f54", "waiting to {action}: {cause}", *_ACTION, "group", "pod"
)
HTTP_SERVED = _info("ea3a94f0d45b471190cc2f5383d6f49f", "serving HTTP at {address}")
HTTP_REFUSED = _warning("7db2dfc10b3f4be6951cb3ee08b0a948", "{error}, retrying", "hint")
HTTP_FAILED = _error("d2323dbdedad45bba0564c52262168d0", "cannot answer HTTP request for {path}: {error}")
CLUSTER_WATCH_FAILED = _warning(
    "dca5e4c9e0114749abb6f940506c934e",
    "cannot watch {object} of the cluster, continuing with the last known state: {error}",
    "hint",
)
CLUSTER_WATCH_RECOVERED = _info("59335e801552444f98c506f1e460d4e6", "watching {object} of the cluster again")
CLUSTER_WRITE_REFUSED = _warning(
    "211fed251cf74df79f0cf6463ac9424b", "cannot write {object} to the cluster: {error}", "hint"
)
CLUSTER_WRITE_RECOVERED = _info(
    "5bf130a7ebf147f59da3871e85e90e5c", "{object} can be written to the cluster again"
)
CLUSTER_EVENTS_DROPPED = _warning(
    "8acce955033c4fa596e242f7b104fa95",
    "Events exceed the rate limit: dropped Events are in this log, and counted in the status",
)
STALE_RESOURCE = _info(
    "f5d2a6c0b8134b6f9a7c3e51d0e42b96",
    "{resource}: the Node still lists it with 0 devices; no device plugin advertises it any more",
    "hint",
)
STALE_RESOURCE_REMOVED = _info(
    "0c7b9e1d5a2f4e83b6d40f9182a7c35e",
    "{resource}: removed from the Node, which listed it with 0 devices",
)
PLAN_PROBLEM = _warning("9c1f0a6be26e44f6b7d2c35d0e81f4aa", "{text}", "hint")
CONFIG_NOT_SAVED = _warning(
    "1ea96fd3c2704b5b9d58e0b7cc3a4f16",
    "cannot save the last valid configuration: {error}",
    "hint",
)
STATE_DAMAGED = _warning("aa73fc3497fe418984859bd0358c5aca", "saved state is lost: {error}")
CLUSTER_STATE_NOT_SAVED = _warning(
    "57bae57baa944888b05950e91b87b25c", "cannot save the state of the cluster: {error}", "hint"
)
