# SPDX-License-Identifier: Apache-2.0
"""One resource towards the kubelet: serve, register, hold the registration, and again when it is lost.

``Endpoint.run`` is one loop per resource, started by ``agent.device_plugins``. Each round is a new server on
a new path. A round ends when the kubelet has a new socket, our own socket is gone, or the stream has ended or
was never opened. There is never a second registration while the first is served: kubelet 1.36 disconnects
the *current* plugin when any stream of that resource ends. ``plugin_watcher`` has the other way to register.

The kubelet dials back and asks for the options before it answers to Register, which may take 10 s; so a call
has 20 s. No refusal is final. ``kubelet.sock`` appears at bind(2), before listen(2), and listen raises no
event: hence the quick tries after its creation for as long as nobody answers. A kubelet that refuses is asked
less often.
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
    """Whether the resource is registered now, how often it was, and the error of the last try, if any."""

    registered: bool = False
    registrations: int = 0
    last_error: str | None = None


class EndReason(StrEnum):
    """Why a registration ended."""

    KUBELET_CHANGED = "the kubelet has a new socket"
    SOCKET_GONE = "our socket was removed"
    STREAM_ENDED = "the kubelet ended the stream"
    NO_STREAM = "the kubelet opened no stream"
    NOT_SERVED = "the socket could not be served"


class Registrar:
    """Registers at the kubelet, over a connection for each call: one that is lost ends no other call.

    Also knows whether the kubelet can be reached, and logs once when that changes.
    """

    def __init__(self, path: str, timeouts: Timeouts) -> None:
        self.refused = False  # no process listens at the socket that is there now
        self._path = path
        self._timeouts = timeouts
        self._away = False

    async def register(self, resource: str, endpoint: str, options: v1beta1.DevicePluginOptions) -> None:
        """Register.

        :raises KubeletAway: if no process listens.
        :raises KubeletUnavailable: with the kubelet's text, if it did not work otherwise.
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
            if isinstance(error.__cause__, GRPCError):  # the kubelet's own answer: it is there
                self.note_back()
            raise
        finally:
            channel.close()
        self.note_back()

    def note_socket(self, kubelet: Identity | None) -> None:
        """Which socket is at the kubelet's path now; without one it cannot be reached."""
        self.refused = False
        if kubelet is None:
            self.note_away()

    def note_away(self) -> None:
        """The kubelet cannot be reached; logged once, until it answers again."""
        if not self._away:
            log.event(log.KUBELET_UNREACHABLE, socket=self._path)
        self._away = True

    def note_back(self) -> None:
        """The kubelet has answered, or has connected by itself."""
        self.refused = False
        if self._away:
            log.event(log.KUBELET_REACHABLE, socket=self._path)
        self._away = False


def register_delay(attempt: int, age: float, jitter: float, timeouts: Timeouts) -> float:
    """Seconds before try ``attempt`` (0 = the first repeat) at a kubelet.sock of that age in seconds."""
    if _is_young(age, timeouts):
        return timeouts.register_retry_young.delay(attempt)
    return timeouts.register_retry.delay(attempt, jitter)


def _is_young(age: float, timeouts: Timeouts) -> bool:
    """True if the kubelet may not listen yet on a kubelet.sock of that age."""
    return age < timeouts.young_kubelet_socket


class Endpoint:
    """One resource's endpoint, registered by Register calls. ``devices`` may change at any time."""

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
        """``changed`` is touched when the state is another; all endpoints share it."""
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
        self._complained = False  # about a refusal, since it was accepted last
        self._news: Latest[None] = Latest(None)  # touched when the directory or a stream may be another
        self._server: SocketServer | None = None
        self._kubelet: Identity | None = None  # with which it registers

    @property
    def listed(self) -> bool:
        """True while the kubelet reads the list."""
        return self._server is not None and self._server.streams > 0

    def shorten_grace(self, grace: float) -> None:
        """From now on the end waits no longer than ``grace`` seconds for an Allocate in flight."""
        self._grace = grace

    async def run(self) -> None:
        """Serve and register again and again, until cancelled."""
        with self._directory.listening(self._note_change):
            while True:
                await self.wait_until(self.is_wanted)
                await self._serve()

    async def _serve(self) -> None:
        """One server and its registration until that is lost, and the pause after it."""
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
            reason = EndReason.KUBELET_CHANGED  # a restart removes our socket, too, and ends the stream
        pause = self._pause_after(reason, time.monotonic() - began)
        restarted = pause == 0.0 or await self.wait_until(self._is_kubelet_changed, pause)
        if not restarted and self.state.registrations:
            log.event(log.REGISTRATION_LOST, resource=self.resource, cause=reason.value)

    def _pause_after(self, reason: EndReason, lived: float) -> float:
        """Seconds until the next round, after one of ``lived`` seconds; a new kubelet ends the pause."""
        timeouts = self._timeouts
        if reason is EndReason.KUBELET_CHANGED:
            self._quick_ends = 0
            return 0.0
        self._quick_ends = 0 if lived > timeouts.long_registration else self._quick_ends + 1
        if reason is EndReason.SOCKET_GONE and self._quick_ends <= 1:
            return timeouts.kubelet_restart
        retry = timeouts.endpoint_retry
        return max(retry.first, retry.delay(self._quick_ends - 1, random.random()))

    # Registration by calls: ``plugin_watcher`` replaces these three

    def is_wanted(self) -> bool:
        """True if there is a kubelet to register with."""
        return self._directory.kubelet.get() is not None

    def create_server(self) -> SocketServer:
        """A server with a name that was never used before."""
        plugin = DevicePlugin(self.devices, self._answers, self._timeouts)
        name = self._directory.new_name(self.resource)
        return SocketServer(self._directory.path, name, [plugin], self._timeouts, on_streams=self._news.touch)

    async def announce(self, server: SocketServer) -> EndReason:
        """Register, however often that fails, and wait until the registration is lost."""
        timeouts, tries = self._timeouts, Counter[bool]()  # by whether the kubelet is young
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
        """One call; False if it failed, or if our or the kubelet's socket was replaced meanwhile."""
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
        except KubeletAway:  # no fault of this resource: the Registrar logs it, once for all
            self._set(self.state._replace(last_error=None))
        except KubeletUnavailable as error:
            self.note_refused(error.what)
        else:
            return True
        return False

    async def hold(self, server: SocketServer) -> EndReason:
        """Wait until the kubelet or our socket is another, or the stream has ended or was never opened."""
        limit = self._timeouts.list_and_watch_open
        if not await self.wait_until(lambda: server.streamed or self._is_over(server), limit):
            return EndReason.NO_STREAM
        await self.wait_until(lambda: (server.streamed and not server.streams) or self._is_over(server))
        if self._is_kubelet_changed():
            return EndReason.KUBELET_CHANGED
        return EndReason.STREAM_ENDED if server.present else EndReason.SOCKET_GONE

    def _is_kubelet_changed(self) -> bool:
        """True if the kubelet has gone, or there is another. One that reads the list is there."""
        now = self._directory.kubelet.get()
        return now != self._kubelet and not (now is None and self.listed)

    def _is_over(self, server: SocketServer) -> bool:
        """True if the kubelet is another, or our socket is gone and there is a kubelet to register with.

        A kubelet that reads the list although its socket is gone could not be registered with: both may have
        been unlinked at once, and not all events have come yet.
        """
        if self._is_kubelet_changed():
            return True
        return not server.present and (not self.listed or os.path.lexists(self._directory.kubelet_path))

    # State

    async def wait_until(self, condition: Callable[[], bool], limit: float | None = None) -> bool:
        """Wait until the condition holds; False if ``limit`` seconds passed first."""
        if condition():
            return True
        with anyio.move_on_after(limit):
            while not condition():
                await self._news.newer(self._news.version)
        return condition()

    def note_accepted(self) -> None:
        """The kubelet has accepted the resource."""
        self._complained = False
        self._set(RegistrationState(True, self.state.registrations + 1))
        devices = len(self.devices.cell.get())
        log.event(log.RESOURCE_REGISTERED, resource=self.resource, devices=devices)

    def note_refused(self, error: str) -> None:
        """Why the resource is not registered; logged once until it is."""
        error = bounded(error)
        if not self._complained:
            log.event(log.REGISTER_FAILING, resource=self.resource, error=error)
        self._complained = True
        self._set(self.state._replace(last_error=error))

    def _set(self, state: RegistrationState) -> None:
        self.state = state
        self._changed.touch()

    def _note_change(self, name: str | None) -> None:
        """The directory has changed: a socket of ours, or all of it (None)."""
        if name is None or (self._server is not None and self._server.name == name):
            self._news.touch()
