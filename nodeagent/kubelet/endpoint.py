# SPDX-License-Identifier: Apache-2.0
"""Serves and registers one resource with the kubelet, and registers it again when the registration is lost.

``agent.device_plugins`` starts one ``Endpoint.run`` per resource. Each pass of the loop in ``Endpoint.run``
creates a new server with a new socket path. A pass ends when the kubelet creates a new socket, the endpoint's
own socket is removed, or the ListAndWatch stream ends or is not opened in time. A resource never has two
registrations at once, because kubelet 1.36 disconnects the *current* plugin when any stream of the resource
ends. ``plugin_watcher`` implements the other registration method.

The kubelet connects back and requests the options before it answers Register, which may take 10 s; so a
Register call may take 20 s. Every failed registration is retried. ``kubelet.sock`` appears at bind(2), but
the kubelet accepts connections only after listen(2), which raises no event: therefore retries follow quickly
just after the socket was created. If the kubelet rejects the registration, retries are less frequent.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import anyio
from grpclib.exceptions import GRPCError

from nodeagent.base import log
from nodeagent.base.errors import KubeletUnavailable, bounded
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet import device_plugin
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.device_plugin import Answers, DeviceList, DevicePlugin
from nodeagent.kubelet.grpc import KubeletAway, SocketChannel, SocketServer, call
from nodeagent.kubelet.socket_dir import Identity, SocketDir

VERSION = "v1beta1"


class RegistrationState(NamedTuple):
    """Whether the resource is registered, the number of registrations, and the error of the last attempt,
    if any.
    """

    registered: bool = False
    registrations: int = 0
    last_error: str | None = None


class EndReason(StrEnum):
    """The reason why a registration ended."""

    KUBELET_CHANGED = "the kubelet has a new socket"
    SOCKET_GONE = "our socket was removed"
    STREAM_ENDED = "the kubelet ended the stream"
    NO_STREAM = "the kubelet opened no stream"
    NOT_SERVED = "the socket could not be served"


class Registrar:
    """Calls Register with one connection per call, so that a lost connection affects no other call.

    It also tracks whether the kubelet can be reached, and logs each change once.
    """

    def __init__(self, path: str, timeouts: Timeouts) -> None:
        self.refused = False  # no process listens on the socket at this path
        self._path = path
        self._timeouts = timeouts
        self._away = False

    async def register(self, resource: str, endpoint: str, options: v1beta1.DevicePluginOptions) -> None:
        """Register the resource.

        :raises KubeletAway: if no process listens.
        :raises KubeletUnavailable: for any other error, with the kubelet's message.
        """
        request = v1beta1.RegisterRequest(
            version=VERSION, endpoint=endpoint, resource_name=resource, options=options
        )
        channel = SocketChannel(self._path)
        stub = v1beta1.RegistrationStub(channel)
        try:
            await call(stub.register(request, timeout=self._timeouts.register_rpc))
        except KubeletAway:
            self.refused = True
            self.note_away()
            raise
        except KubeletUnavailable as error:
            # the kubelet answered with an error, so it can be reached
            if isinstance(error.__cause__, GRPCError):
                self.note_back()
            raise
        finally:
            channel.close()
        self.note_back()

    def note_socket(self, kubelet: Identity | None) -> None:
        """Store the identity of kubelet.sock; None means that the kubelet cannot be reached."""
        self.refused = False
        if kubelet is None:
            self.note_away()

    def note_away(self) -> None:
        """Record that the kubelet cannot be reached; this is logged once until it answers again."""
        if not self._away:
            log.event(log.KUBELET_UNREACHABLE, socket=self._path)
        self._away = True

    def note_back(self) -> None:
        """Record that the kubelet has answered or has connected to the endpoint."""
        self.refused = False
        if self._away:
            log.event(log.KUBELET_REACHABLE, socket=self._path)
        self._away = False


def register_delay(attempt: int, age: float, jitter: float, timeouts: Timeouts) -> float:
    """Return the seconds before retry ``attempt`` (from 0), ``age`` seconds after kubelet.sock appeared."""
    if _is_young(age, timeouts):
        return timeouts.register_retry_young.delay(attempt)
    return timeouts.register_retry.delay(attempt, jitter)


def _is_young(age: float, timeouts: Timeouts) -> bool:
    """Return True if kubelet.sock is so new that the kubelet possibly does not listen on it yet."""
    return age < timeouts.young_kubelet_socket


class Endpoint:
    """The endpoint of one resource, registered by Register calls. ``devices`` may change at any time."""

    def __init__(
        self,
        resource: str,
        devices: DeviceList,
        answers: Answers,
        directory: SocketDir,
        registrar: Registrar,
        changed: Latest[None],
        timeouts: Timeouts,
    ) -> None:
        """Create the endpoint.

        ``changed``, shared by all endpoints, is touched when the registration state changes.
        """
        self.resource = resource
        self.devices = devices
        self.state = RegistrationState()
        self._answers = answers
        self._directory = directory
        self._registrar = registrar
        self._changed = changed
        self._timeouts = timeouts
        self._grace = timeouts.allocate_answer
        self._quick_ends = 0
        self._complained = False  # a refusal was logged since the last successful registration
        self._news: Latest[None] = Latest(None)  # touched when the directory or a stream may have changed
        self._server: SocketServer | None = None
        self._kubelet: Identity | None = None  # the kubelet.sock of the current registration

    @property
    def listed(self) -> bool:
        """Return True while the kubelet reads the device list."""
        return self._server is not None and self._server.streams > 0

    def shorten_grace(self, grace: float) -> None:
        """Limit the wait for running Allocate calls at the end to ``grace`` seconds."""
        self._grace = grace

    async def run(self) -> None:
        """Serve and register the resource until cancelled."""
        with self._directory.listening(self._note_change):
            while True:
                await self.wait_until(self.is_wanted)
                await self._serve()

    async def _serve(self) -> None:
        """Run one server with its registration until the registration is lost, then pause."""
        began = time.monotonic()
        kubelet = self._kubelet = self._directory.kubelet.get()
        server = self._server = self.create_server()
        try:
            await server.start()
            reason = await self.announce(server)
        except KubeletUnavailable as error:
            self.note_refused(error.what)
            reason = EndReason.NOT_SERVED
        finally:
            await server.stop(self._grace)
            self._server = None
            self._set(self.state._replace(registered=False))
        if self._directory.kubelet.get() != kubelet:
            # a kubelet restart also removes our socket and ends the stream
            reason = EndReason.KUBELET_CHANGED
        pause = self._pause_after(reason, time.monotonic() - began)
        restarted = pause == 0.0 or await self.wait_until(self._is_kubelet_changed, pause)
        if not restarted and self.state.registrations:
            log.event(log.REGISTRATION_LOST, resource=self.resource, cause=reason.value)

    def _pause_after(self, reason: EndReason, lived: float) -> float:
        """Return the pause after a pass of ``lived`` seconds; a new kubelet ends the pause early."""
        timeouts = self._timeouts
        if reason is EndReason.KUBELET_CHANGED:
            self._quick_ends = 0
            return 0.0
        self._quick_ends = 0 if lived > timeouts.long_registration else self._quick_ends + 1
        if reason is EndReason.SOCKET_GONE and self._quick_ends <= 1:
            return timeouts.kubelet_restart
        retry = timeouts.endpoint_retry
        return max(retry.first, retry.delay(self._quick_ends - 1, random.random()))

    # Registration with Register calls; ``plugin_watcher`` overrides these three methods

    def is_wanted(self) -> bool:
        """Return True if a kubelet exists with which the resource can be registered."""
        return self._directory.kubelet.get() is not None

    def create_server(self) -> SocketServer:
        """Return a server with a socket name that was never used before."""
        plugin = DevicePlugin(self.devices, self._answers, self._timeouts)
        name = self._directory.new_name(self.resource)
        return SocketServer(self._directory.path, name, [plugin], self._timeouts, on_streams=self._news.touch)

    async def announce(self, server: SocketServer) -> EndReason:
        """Register, retrying failures, and wait until the registration is lost."""
        # attempts, counted separately for a young and an older kubelet.sock
        timeouts, tries = self._timeouts, Counter[bool]()
        while server.present and self.is_wanted():
            self._kubelet = self._directory.kubelet.get()
            if await self._register(server):
                self.note_accepted()
                return await self.hold(server)
            age = math.inf if self.state.last_error else self._directory.age
            young = _is_young(age, timeouts)
            wait = register_delay(tries[young], age, random.random(), timeouts)
            tries[young] += 1
            if await self.wait_until(lambda: self._is_over(server), wait):
                tries.clear()
        return EndReason.SOCKET_GONE

    async def _register(self, server: SocketServer) -> bool:
        """Call Register once; return False if it failed, or if a socket was replaced during the call."""
        accepted = False

        async def register() -> None:
            nonlocal accepted
            accepted = await self._call_register(server)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(register, name=f"register {self.resource}")
            await self.wait_until(lambda: self._is_over(server))
            tasks.cancel_scope.cancel()
        return accepted

    async def _call_register(self, server: SocketServer) -> bool:
        options = device_plugin.options(self._answers)
        try:
            await self._registrar.register(self.resource, server.name, options)
        except KubeletAway:  # not specific to this resource: the Registrar logs it once for all resources
            self._set(self.state._replace(last_error=None))
        except KubeletUnavailable as error:
            self.note_refused(error.what)
        else:
            return True
        return False

    async def hold(self, server: SocketServer) -> EndReason:
        """Wait until the kubelet restarts, our socket is removed, or the stream ends or is not opened in
        time.
        """
        limit = self._timeouts.list_and_watch_open
        if not await self.wait_until(lambda: server.streamed or self._is_over(server), limit):
            return EndReason.NO_STREAM
        await self.wait_until(lambda: (server.streamed and not server.streams) or self._is_over(server))
        if self._is_kubelet_changed():
            return EndReason.KUBELET_CHANGED
        return EndReason.STREAM_ENDED if server.present else EndReason.SOCKET_GONE

    def _is_kubelet_changed(self) -> bool:
        """Return True if kubelet.sock was removed or replaced; a kubelet that still reads the list counts
        as unchanged.
        """
        now = self._directory.kubelet.get()
        return now != self._kubelet and not (now is None and self.listed)

    def _is_over(self, server: SocketServer) -> bool:
        """Return True if the kubelet has restarted, or if the endpoint's own socket is gone and kubelet.sock
        exists.

        If both sockets are gone but the kubelet still reads the list, the result is False, because a
        registration needs kubelet.sock.
        """
        if self._is_kubelet_changed():
            return True
        return not server.present and (not self.listed or os.path.lexists(self._directory.kubelet_path))

    # State

    async def wait_until(self, condition: Callable[[], bool], limit: float | None = None) -> bool:
        """Wait until the condition holds; return False if ``limit`` seconds pass first."""
        if condition():
            return True
        with anyio.move_on_after(limit):
            while not condition():
                await self._news.newer(self._news.version)
        return condition()

    def note_accepted(self) -> None:
        """Record that the kubelet has accepted the resource."""
        self._complained = False
        self._set(RegistrationState(True, self.state.registrations + 1))
        devices = len(self.devices.cell.get())
        log.event(log.RESOURCE_REGISTERED, resource=self.resource, devices=devices)

    def note_refused(self, error: str) -> None:
        """Record why the resource is not registered; this is logged once until the registration succeeds."""
        error = bounded(error)
        if not self._complained:
            log.event(log.REGISTER_FAILING, resource=self.resource, error=error)
        self._complained = True
        self._set(self.state._replace(last_error=error))

    def _set(self, state: RegistrationState) -> None:
        self.state = state
        self._changed.touch()

    def _note_change(self, name: str | None) -> None:
        """Handle a change of one of nodeagent's sockets, or of an unknown part of the directory (None)."""
        if name is None or (self._server is not None and self._server.name == name):
            self._news.touch()
