# SPDX-License-Identifier: Apache-2.0
"""The life of one resource towards the kubelet: serve, register, hold, and again whenever it is needed.

One loop, level-triggered. A life ends when the kubelet has a new socket, our own socket is gone, the stream
has ended, or none was opened; the next life is a new server on a new path. There is never a second
registration while the first is served: kubelet 1.36 disconnects the *current* plugin when any stream of
that resource ends. Does not know what a device is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import anyio

from nodeagent.base import log
from nodeagent.base.backoff import Backoff
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.kubelet.deviceplugin import registration, service
from nodeagent.kubelet.deviceplugin.listing import Listing
from nodeagent.kubelet.deviceplugin.service import Answers, Plugin
from nodeagent.kubelet.deviceplugin.socketdir import Identity, SocketDir
from nodeagent.kubelet.grpc.channel import KubeletAway
from nodeagent.kubelet.grpc.server import SocketServer

STREAM_LIMIT = 5.0  # seconds for the kubelet to open ListAndWatch after Register
DEBOUNCE = 0.1  # seconds: our sockets vanish an instant before the new kubelet.sock comes
GRACE = service.ALLOCATE_LIMIT  # seconds for an Allocate in flight when a life ends

_AGAIN = Backoff(first=1.0, limit=30.0)  # at least 1 s apart, so that two agents do not fight
_LONG_LIFE = 60.0  # seconds after which a life counts as a success


class End(StrEnum):
    """Why a life ended."""

    KUBELET_CHANGED = "the kubelet has a new socket"
    SOCKET_GONE = "our socket was removed"
    STREAM_ENDED = "the kubelet ended the stream"
    NO_STREAM = "the kubelet opened no stream"
    NOT_SERVED = "the socket could not be served"


@dataclass(slots=True)
class Standing:
    """How the resource stands with the kubelet; read by ``status``."""

    registered: bool = False
    registrations: int = 0
    last_error: str | None = None


class Endpoint:
    """One resource's endpoint. ``run`` goes on until it is cancelled; ``listing`` may change at any time."""

    def __init__(
        self,
        resource: str,
        listing: Listing,
        answers: Answers,
        directory: SocketDir,
        registrar: registration.Registrar,
    ) -> None:
        self.resource = resource
        self.listing = listing
        self.standing = Standing()
        self.grace = GRACE  # shortened at shutdown
        self.on_end: Callable[[], None] = lambda: None  # of each life, when its connections are closed
        self._answers = answers
        self._directory = directory
        self._registrar = registrar
        self._poke: Latest[None] = Latest(None)
        self._kubelet: Identity | None = None  # with which this life registers
        self._quick_ends = 0
        self._complained = False  # of a refusal, since it was accepted last

    async def run(self) -> None:
        """Live again and again, for ever."""
        token = f"\0{self.resource}"  # a name that no file has: pokes for the kubelet's socket only
        self._directory.subscribe(token, self._poke.touch)
        try:
            while True:
                await self._until(self._wanted)
                began = time.monotonic()
                self._kubelet = kubelet = self._directory.kubelet.get()
                try:
                    end = await self._life()
                finally:
                    self.standing.registered = False
                if self._directory.kubelet.get() != kubelet:
                    end = End.KUBELET_CHANGED  # whatever was seen first: a restart also removes our socket
                self.on_end()
                await self._pause(end, time.monotonic() - began)
        finally:
            self._directory.unsubscribe(token)

    def _wanted(self) -> bool:
        """True if there is somebody to serve."""
        return self._directory.kubelet.get() is not None

    def _server(self, name: str, plugin: Plugin) -> SocketServer:
        return SocketServer(self._directory.path, name, [plugin])

    async def _life(self) -> End:
        """One server, from its start to its end; returns why it ended."""
        plugin = Plugin(self.listing, self._answers, self._poke.touch)
        name = self._directory.new_name(self.resource)
        server = self._server(name, plugin)
        self._directory.subscribe(name, self._poke.touch)
        try:
            await server.start()
            if await self._registered(server, plugin, name):
                return await self._hold(server, plugin)
            return End.SOCKET_GONE
        except KubeletUnavailable as error:
            self._failed(error.what)
            return End.NOT_SERVED
        finally:
            self._directory.unsubscribe(name)
            await server.stop(self.grace)

    async def _registered(self, server: SocketServer, plugin: Plugin, name: str) -> bool:
        """Register, however often it fails; False if our socket was removed meanwhile."""
        attempt, young = 0, True
        while server.present:
            self._kubelet = self._directory.kubelet.get()
            if await self._tried(server, name):
                self._succeeded()
                return True
            if young != registration.is_young(self._directory.age):
                attempt, young = 0, not young
            wait = registration.delay(attempt, self._directory.age, random.random())
            attempt += 1
            if await self._until(lambda: not self._same_kubelet() or not server.present, wait):
                attempt = 0
        return False

    async def _tried(self, server: SocketServer, name: str) -> bool:
        """Register once; False if it failed, or if our or the kubelet's socket was replaced meanwhile."""
        answers: list[bool] = []

        async def call() -> None:
            answers.append(await self._accepted(name))
            self._poke.touch()

        # A task of its own: grpclib ends a lost call by cancelling the task that waits for it, and a
        # cancellation that comes too late must not hit the one that keeps this resource going.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, name=f"register {self.resource}")
            await self._until(lambda: bool(answers) or not self._same_kubelet() or not server.present)
            tasks.cancel_scope.cancel()
        return answers == [True]

    async def _accepted(self, name: str) -> bool:
        try:
            await self._registrar.register(self.resource, name, service.options(self._answers))
        except KubeletAway as error:
            self.standing.last_error = error.what  # said once for all resources, by the registrar
        except KubeletUnavailable as error:
            self._failed(error.what)
        else:
            return True
        return False

    async def _hold(self, server: SocketServer, plugin: Plugin) -> End:
        """Wait until this registration is no longer good."""

        def end() -> End | None:
            if not self._same_kubelet():
                return End.KUBELET_CHANGED
            if not server.present:
                return End.SOCKET_GONE
            if plugin.streamed and not plugin.streams:
                return End.STREAM_ENDED
            return None

        if not await self._until(lambda: plugin.streamed or end() is not None, STREAM_LIMIT):
            return End.NO_STREAM
        await self._until(lambda: end() is not None)
        return end() or End.STREAM_ENDED

    async def _pause(self, end: End, lived: float) -> None:
        """Wait before the next life; a new kubelet ends the wait."""
        self._quick_ends = 0 if lived > _LONG_LIFE or end is End.KUBELET_CHANGED else self._quick_ends + 1
        if end is End.KUBELET_CHANGED:
            return
        wait = DEBOUNCE
        if end is not End.SOCKET_GONE or self._quick_ends > 1:
            wait = max(1.0, _AGAIN.delay(self._quick_ends - 1, random.random()))
        restarted = await self._until(lambda: not self._same_kubelet(), wait)
        if self.standing.registrations and not restarted:
            log.event(log.REGISTRATION_LOST, resource=self.resource, why=end.value)

    def _same_kubelet(self) -> bool:
        return self._directory.kubelet.get() == self._kubelet

    async def _until(self, condition: Callable[[], bool], limit: float | None = None) -> bool:
        """Wait, woken by pokes, until the condition holds; False if ``limit`` seconds passed first."""
        with anyio.move_on_after(limit):
            while not condition():
                await self._poke.newer(self._poke.version)
        return condition()

    def _failed(self, error: str) -> None:
        if not self._complained:
            log.event(log.REGISTER_FAILING, resource=self.resource, error=error)
        self._complained = True
        self.standing.last_error = error

    def _succeeded(self) -> None:
        self.standing.registered = True
        self.standing.registrations += 1
        self.standing.last_error = None
        self._complained = False
        log.event(log.RESOURCE_REGISTERED, resource=self.resource, devices=len(self.listing.cell.get()))
