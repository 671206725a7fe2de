# SPDX-License-Identifier: Apache-2.0
"""Every time limit, poll interval and retry delay of the daemon and its commands, in seconds.

The record is built once at process start and passed to all users. It does not include the operator's
settings (``timing`` in the configuration). The environment variable NODEAGENT_TIME_SCALE multiplies all
fields, for tests only: real kubelets and kernels need the values below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from nodeagent.base.errors import ConfigError

SCALE = "NODEAGENT_TIME_SCALE"


class Backoff(NamedTuple):
    """Retry delays in seconds: ``first``, then multiplied by ``factor`` up to ``limit``."""

    first: float
    limit: float
    factor: float = 2.0

    def delay(self, attempt: int, jitter: float = 0.0) -> float:
        """Return the seconds before retry ``attempt`` (0 is the first retry).

        ``jitter`` from 0 to 1 shortens the delay by up to a half, so that many clients spread out.
        """
        exponent = min(max(attempt, 0), 63)
        plain = min(self.limit, self.first * self.factor**exponent)
        return plain * (1.0 - jitter / 2)


class Timeouts(NamedTuple):
    """All time limits: one field for each wait."""

    # Registration with the kubelet
    register_rpc: float = 20.0  # the kubelet connects back before it answers, which may take 10 s
    register_retry: Backoff = Backoff(first=0.2, limit=10.0)
    register_retry_young: Backoff = Backoff(first=0.005, limit=0.1)
    young_kubelet_socket: float = 5.0  # for fast retries: bind(2) raises an inotify event, listen(2) none
    list_and_watch_open: float = 5.0  # from the response of Register to the ListAndWatch call
    plugin_watcher_return: float = 2.0  # a restarted kubelet opens the stream again: 0.4 s on 1.36
    kubelet_directory_poll: float = 10.0  # for changes without an inotify event
    kubelet_restart: float = 0.1  # our sockets are removed just before the new kubelet.sock is created
    endpoint_retry: Backoff = Backoff(first=1.0, limit=30.0)  # two agents must not fight for a resource
    long_registration: float = 60.0  # a registration that lasts longer resets ``endpoint_retry``
    memory_trim: float = 0.12  # after the first of several connections is closed

    # The device plugin service
    allocate_answer: float = 10.0  # the kubelet sets no deadline and admits no other pod meanwhile
    allocate_at_shutdown: float = 0.5  # for an Allocate in flight when the daemon ends
    refusal_list_sent: float = 0.1  # a refused Allocate waits until the list with the reason is sent
    allocated_id_listed: float = 1.0  # kubelet 1.36.2 crashes if an id leaves the list during Allocate

    # The DRA driver
    claim_prepare: float = 40.0  # the kubelet cancels the call after 45 s, and repeats it 60 to 90 s later
    claim_device_poll: float = 0.5  # while a claim waits for a device: closing one raises no event
    claim_read_other: float = 3.0  # whether a claim that uses a requested device still exists
    claim_release_by_kubelet: float = 180.0  # the kubelet looks for ended pods each minute
    claim_release_read: float = 0.05  # a pod ends only after its claims are released
    dra_registration: float = 10.0  # the kubelet looks for sockets each second
    dra_health_repeat: float = 20.0  # the kubelet shows Unknown for a device without a report for 30 s

    # gRPC servers and connections
    grpc_call_cancel: float = 1.0  # for cancelled calls to end
    grpc_peer_close: float = 1.0  # for a client to close its connection after its stream has ended
    grpc_answer_read: float = 0.05  # for a client to read an answer: grpclib's drops it at a GOAWAY
    grpc_server_close: float = 1.0  # for asyncio to close the server's connections

    # PodResources and the kubelet's checkpoint
    pod_resources_rpc: float = 5.0
    pod_resources_retry: Backoff = Backoff(first=0.5, limit=10.0)
    pod_resources_spacing: float = 0.1  # the kubelet answers 100 requests a second, of all clients
    release_check_spacing: float = 0.02  # the same limit, while a release is awaited
    pod_resources_at_start: float = 1.0  # the first list waits for the devices in use
    pod_resources_in_allocate: float = 2.5  # to find the pod under admission
    pod_resources_repeat: float = 0.1  # after a failed request inside an Allocate
    pod_resources_after_allocate: float = (
        1.0  # then the kubelet lists the allocation, or has rejected the pod
    )
    checkpoint_write: float = 0.5  # after a list was sent; the kubelet writes its checkpoint within 2 ms
    checkpoint_write_before_change: float = 3.0  # the same, before a device is unbound or removed
    checkpoint_poll: float = 0.002  # between two reads of the checkpoint until it is written
    checkpoint_rewrite: float = (
        3.0  # between two lists sent again for entries that PodResources does not list
    )
    unreadable_checkpoint: float = 30.0  # a kubelet may not list all pods this long after its start

    # Allocate
    former_holder_close: float = 9.0  # for the former pod's container to close the device
    device_close_poll: float = 0.1  # close(2) raises no event
    foreign_allocate: float = 12.0  # another plugin's Allocate for the pod under admission
    # for the next container of a pod that already has all requested devices of one container
    admission_settle: float = 5.0
    forgotten_container_end: float = 5.0  # a force-deleted pod's container: 2.7 s were measured
    open_file_scan: float = 2.0  # one scan of the open files of all processes
    open_file_scan_fresh: float = 0.5  # a scan result may be used for a batch of changes during this time
    usb_holder_close: float = 5.0  # for the former pod's container to close a USB device
    usb_close_poll: float = 0.2  # close(2) raises no event
    usb_node_creation: float = 8.0  # the nodes of one Allocate, within ``allocate_answer``
    usb_feature_load: float = 5.0  # to load the code for USB devices

    # Scans of the host
    device_read: float = 0.5  # one device, by the daemon
    device_read_once: float = 2.0  # one device, by a command
    device_hints_read: float = 1.0  # one device's hints, by a command
    opener_scan: float = 1.0  # one scan for the processes that have VFIO functions open
    event_burst_gap: float = 0.01  # the end of a burst: a driver change sends four events within 2 ms
    event_burst: float = 0.5  # a burst that does not end is scanned after this time
    event_source_start: float = 2.0  # the first scan waits until the source of events is ready
    host_poll: float = 5.0  # between scans where the kernel sends no events
    failed_scan_retry: float = 1.0
    # devices whose initialization is not finished
    rescan_delays: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
    device_recovery: float = 120.0  # after a reset the kernel waits 60 s (PCIE_RESET_READY_POLL_MS)
    cdi_directory_read: float = 1.0  # without progress on a file, a directory counts as hanging

    # Changes to the host
    write_effect: float = 1.0  # from a write to sysfs to its effect
    write_effect_poll: float = 0.002
    write_late: float = 10.0  # a write that takes longer is reported
    write_retry: Backoff = Backoff(first=1.0, limit=300.0)
    interrupting_retry: Backoff = Backoff(first=1.0, limit=3600.0)  # each attempt unbinds a working driver
    change_request_answer: float = 10.0  # a later response says that the change is not finished yet
    host_use_read: float = 1.0  # a detailed check of the host's use of a device before a change

    # Configuration and records on disk
    config_burst_gap: float = 0.1  # the end of a burst: editors write in several steps
    refused_config_retry: float = 30.0
    record_write_retry: float = 60.0

    # The daemon's components
    component_retry: Backoff = Backoff(first=0.1, limit=30.0)
    component_healthy: float = 60.0  # a failure after a longer run resets the back-off
    loop_turn: float = 40.0  # an idle loop iterates three times as often; 20 devices that hang take 10 s
    directory_check: float = 5.0  # of the watched directories: a mount over one raises no event
    repeated_log_lines: float = 60.0  # repeated lines are suppressed until this long after the first one
    last_log_lines: float = 1.0  # for the log's reader when the daemon ends
    problems_settle: float = 1.0  # devices that are bound at boot appear one by one
    status_line_pause: float = 0.5  # between two status lines for systemd
    watchdog_notice: float = 15.0  # where systemd sets no interval
    config_reload: float = 10.0  # then the reload is reported to systemd as done
    check_step: float = 6.0  # one step of ``nodeagent check``, longer than ``pod_resources_rpc``

    # Local sockets and HTTP
    local_socket_answer: float = 5.0  # for a command to wait for a part of the daemon's answer
    http_request: float = 10.0  # for a client to send its request, and to take each part of the answer
    http_address_retry: float = 10.0
    page_update: float = 1.0
    page_keepalive: float = 15.0

    # Commands
    status_watch: float = 1.0  # between two updates of ``nodeagent status --watch``
    daemon_answer: float = 30.0  # longer than ``change_request_answer``
    daemon_start: float = 10.0  # a daemon that has the lock but does not listen yet
    daemon_start_poll: float = 0.1

    # The API server
    api_connect: float = 5.0
    api_silence: float = 10.0  # between two parts of an answer
    api_answer: float = 30.0
    api_retry: Backoff = Backoff(first=0.5, limit=30.0)
    api_retry_absent: Backoff = Backoff(first=5.0, limit=60.0)  # KubeVirt may be installed at any time
    api_retry_refused: Backoff = Backoff(first=30.0, limit=300.0)  # for errors that need manual intervention
    api_retry_after: float = 600.0  # the longest Retry-After that is respected
    missing_right_retry: float = 600.0
    credential_program: float = 30.0  # the exec plugin of a kubeconfig
    watch_stream: float = 300.0  # stream duration requested from the server, less up to a fifth
    watch_stream_end: float = 10.0  # silence after the time at which the server should have ended the stream
    watch_stream_steady: float = 5.0  # a stream that lasts as long resets ``api_retry``
    watch_restart_spread: float = 0.5  # a server that shuts down ends the streams of all nodes
    cluster_start_spread: float = 10.0  # the first requests of many nodes
    cluster_status_poll: float = 10.0  # between two checks of the status without a change
    event_gather: float = 0.2  # Events of one cause are sent together
    event_settle: float = 30.0  # problems that exist at the start are sent later
    event_spread: float = 30.0  # many nodes report the same cause
    event_refill: float = 300.0  # after a burst, one more Event per period
    event_age: float = 600.0  # older Events are dropped
    condition_gather: float = 0.5
    condition_settle: float = 5.0  # before the condition gets another status
    condition_text_settle: float = 60.0  # before only the message of the condition is updated
    condition_spread: float = 10.0
    stale_resource_settle: float = 2.0  # after the kubelet has removed the resource
    stale_resource_spread: float = 30.0  # many nodes remove the same resource
    removed_resource_seen: float = 5.0  # the watched Node may still list a removed resource
    claim_read_retry: Backoff = Backoff(first=0.05, limit=0.5)  # a pod starts only after that
    claim_authorizer_lag: float = 2.0  # until it knows that a pod of this node uses the claim
    slice_write_spacing: float = 1.0  # each write of a ResourceSlice goes to every scheduler
    slice_write_retry: Backoff = Backoff(first=0.5, limit=10.0)
    slice_repair: Backoff = Backoff(first=2.0, limit=60.0)  # while another program undoes each write
    slice_repair_quiet: float = 30.0  # without such a change, the next one is repaired at once
    node_object_poll: float = 1.0  # for a Node that does not exist, and is the owner of ResourceSlices

    def scaled(self, factor: float) -> Timeouts:
        """Return the Timeouts with every duration multiplied by ``factor``."""
        return Timeouts(*(_scaled(value, factor) for value in self))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Timeouts:
        """Return the Timeouts, multiplied by the factor in NODEAGENT_TIME_SCALE.

        :raises ConfigError: if the variable is not a positive number.
        """
        text = environ.get(SCALE, "")
        if not text:
            return cls()
        try:
            factor = float(text)
        except ValueError:
            factor = math.nan
        if not 0.0 < factor < math.inf:
            raise ConfigError(
                f"{SCALE}: {text!r} is not a positive number", "unset it, or set it to a number such as 0.3"
            )
        return cls().scaled(factor)


def _scaled(value: Any, factor: float) -> Any:
    """Return the duration, Backoff or tuple of durations, multiplied by the factor."""
    if isinstance(value, Backoff):
        return value._replace(first=value.first * factor, limit=value.limit * factor)
    if isinstance(value, tuple):
        return tuple(each * factor for each in value)
    return value * factor
