# SPDX-License-Identifier: Apache-2.0
"""The one way to register: a Register call to the kubelet, however often that fails.

Each call has a connection of its own: one that breaks costs one resource one try.
The kubelet dials back and asks for the options before it answers, which may take 10 s; so a call has 20 s.
No refusal is final. ``kubelet.sock`` appears at bind(2), before listen(2), and listen raises no event: hence
the quick tries after its birth, for as long as nobody answers. Who has refused is not asked again so soon.
"""

from __future__ import annotations

import os
import random

import anyio

from nodeagent.base import log
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.deviceplugin.life import End, Life, Standing
from nodeagent.kubelet.deviceplugin.service import Plugin
from nodeagent.kubelet.deviceplugin.socketdir import Identity, SocketDir
from nodeagent.kubelet.grpc.channel import KubeletAway, open_channel
from nodeagent.kubelet.grpc.server import SocketServer

VERSION = "v1beta1"


def delay(attempt: int, age: float, jitter: float, timeouts: Timeouts) -> float:
    """Seconds before try ``attempt`` (0 = the first repeat) at a kubelet.sock of that age in seconds."""
    if is_young(age, timeouts):
        return timeouts.register_retry_young.delay(attempt)
    return timeouts.register_retry.delay(attempt, jitter)


def is_young(age: float, timeouts: Timeouts) -> bool:
    """True if a kubelet.sock of that age is tried quickly; tries are counted anew when that ends."""
    return age < timeouts.young_kubelet_socket


class Tries:
    """The tries of one registration; they are counted anew when the kubelet is no longer young."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._attempt = 0
        self._refusals = 0
        self._young = True

    def next_delay(self, age: float, jitter: float) -> float:
        """Seconds before the next try at a kubelet.sock of that age in seconds."""
        if self._young != is_young(age, self._timeouts):
            self._attempt = 0
            self._young = not self._young
        self._attempt += 1
        return delay(self._attempt - 1, age, jitter, self._timeouts)

    def after_refusal(self, jitter: float) -> float:
        """Seconds before the next try at a kubelet that has answered, however young it is."""
        self._refusals += 1
        return self._timeouts.register_retry.delay(self._refusals - 1, jitter)

    def begin_again(self) -> None:
        """Count anew: another kubelet is there."""
        self._attempt = self._refusals = 0


class Registrar:
    """The kubelet's Registration service, with a connection for each call.

    Also the one that knows whether the kubelet can be reached, and says once when that changes.
    """

    def __init__(self, path: str, timeouts: Timeouts) -> None:
        self._register_rpc = timeouts.register_rpc
        self.refused = False  # whether nobody answers at the socket that is there now
        self._path = path
        self._away = False

    async def register(self, resource: str, endpoint: str, options: v1beta1.DevicePluginOptions) -> None:
        """Register.

        :raises KubeletUnavailable: with the kubelet's text, if it did not work.
        """
        request = v1beta1.RegisterRequest(
            version=VERSION, endpoint=endpoint, resource_name=resource, options=options
        )
        try:
            async with open_channel(self._path) as channel:
                await v1beta1.RegistrationStub(channel).register(request, timeout=self._register_rpc)
        except KubeletAway:
            self.refused = True
            self.away()
            raise
        self.back()

    def seen(self, kubelet: Identity | None) -> None:
        """Who is at the kubelet's path now; where nobody is, nobody can be reached."""
        self.refused = False
        if kubelet is None:
            self.away()

    def away(self) -> None:
        """Note that the kubelet cannot be reached; said once, until it answers again."""
        if not self._away:
            log.event(log.KUBELET_GONE, socket=self._path)
        self._away = True

    def back(self) -> None:
        """Note that the kubelet has answered, or has come by itself."""
        self.refused = False
        if self._away:
            log.event(log.KUBELET_BACK, socket=self._path)
        self._away = False


class RegisterWay:
    """Registers each resource in the device-plugins directory by a call, and again with each new kubelet."""

    def __init__(self, directory: SocketDir, registrar: Registrar, timeouts: Timeouts) -> None:
        self.directory = directory
        self._timeouts = timeouts
        self._registrar = registrar

    @property
    def wanted(self) -> bool:
        """True if there is a kubelet."""
        return self.directory.kubelet.get() is not None

    def server(self, resource: str, plugin: Plugin, standing: Standing) -> SocketServer:
        """A server with the device plugin."""
        name = self.directory.new_name(resource)
        return SocketServer(self.directory.path, name, [plugin], self._timeouts)

    async def register(self, life: Life) -> bool:
        """Call until the kubelet accepts; False if our socket was removed meanwhile, or the kubelet's."""
        tries = Tries(self._timeouts)
        while life.server.present and self.wanted:
            life.meet_kubelet()
            if await self._tried(life):
                life.standing.accepted()
                return True
            if life.standing.registration.last_error is None:
                wait = tries.next_delay(self.directory.age, random.random())
            else:
                wait = tries.after_refusal(random.random())
            if await life.until(lambda: self.over(life), wait):
                tries.begin_again()
        return False

    async def _tried(self, life: Life) -> bool:
        """Call once; False if it failed, or if our or the kubelet's socket was replaced meanwhile."""
        answers: list[bool] = []

        async def call() -> None:
            answers.append(await self._accepted(life))
            life.news.touch()

        # A task of its own: grpclib ends a lost call by cancelling the task that waits for it, and a
        # cancellation that comes too late must not hit the one that keeps this resource going.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, name=f"register {life.resource}")
            await life.until(lambda: bool(answers) or self.over(life))
            tasks.cancel_scope.cancel()
        return answers == [True]

    async def _accepted(self, life: Life) -> bool:
        try:
            await self._registrar.register(life.resource, life.server.path.name, life.plugin.options)
        except KubeletAway:
            life.standing.unreachable()
        except KubeletUnavailable as error:
            life.standing.refused(error.what)
        else:
            return True
        return False

    def over(self, life: Life) -> bool:
        """True if the kubelet is another, or our socket is gone and there is a kubelet to register with."""
        return not life.same_kubelet or (not life.server.present and self._reachable(life))

    def _reachable(self, life: Life) -> bool:
        """False while the kubelet reads the list although its socket is gone: nobody could register then.

        Both may have been unlinked at once, and not all of it be heard yet.
        """
        return not life.streaming or os.path.lexists(self.directory.kubelet_path)

    async def hold(self, life: Life) -> End:
        """Wait until the kubelet is another, our socket is gone, or the stream has ended or never came."""
        limit = self._timeouts.list_and_watch_open
        if not await life.until(lambda: life.plugin.streamed or self.over(life), limit):
            return End.NO_STREAM
        await life.until(lambda: life.stream_ended or self.over(life))
        if not life.same_kubelet:
            return End.KUBELET_CHANGED
        return End.STREAM_ENDED if life.server.present else End.SOCKET_GONE
