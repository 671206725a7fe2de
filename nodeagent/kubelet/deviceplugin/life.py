# SPDX-License-Identifier: Apache-2.0
"""One life of a resource towards the kubelet, and what a way of registering makes of it.

A life is one server on one path, from its start to its end. There are two ways in which the kubelet gets to
know of it, each a small object that all resources share: a Register call (``registration``), and a file that
the kubelet's plugin watcher finds (``kubelet.plugin_watcher``). A life offers them what they need: its parts,
and waiting for any news of them. How the resource stands with the kubelet goes on from life to life, and each
change of it is said once. Does not know when the next life begins.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

import anyio

from nodeagent.base import log
from nodeagent.base.errors import bounded
from nodeagent.base.latest import Latest
from nodeagent.kubelet.deviceplugin.listing import Listing
from nodeagent.kubelet.deviceplugin.service import Plugin
from nodeagent.kubelet.deviceplugin.socketdir import Identity, SocketDir
from nodeagent.kubelet.grpc.server import SocketServer


class Registration(NamedTuple):
    """Whether the resource is registered now, how often it was, and what is wrong (None: nothing is)."""

    registered: bool = False
    registrations: int = 0
    last_error: str | None = None


class Standing:
    """One resource's registration as it changes; ``registration`` is how it is now."""

    def __init__(self, resource: str, listing: Listing, changed: Latest[None]) -> None:
        """``changed`` is touched when the registration is another."""
        self.registration = Registration()
        self._changed = changed
        self._resource = resource
        self._listing = listing
        self._complained = False  # of a refusal, since it was accepted last

    def accepted(self) -> None:
        """Note that the kubelet has taken the resource."""
        self._set(Registration(True, self.registration.registrations + 1))
        self._complained = False
        devices = len(self._listing.cell.get())
        log.event(log.RESOURCE_REGISTERED, resource=self._resource, devices=devices)

    def refused(self, error: str) -> None:
        """Note why the resource is not registered; said once until it is."""
        error = bounded(error)
        if not self._complained:
            log.event(log.REGISTER_FAILING, resource=self._resource, error=error)
        self._complained = True
        self._set(self.registration._replace(last_error=error))

    def unreachable(self) -> None:
        """Note that nobody answers: no fault of this resource. The Registrar says it, once for all."""
        self._set(self.registration._replace(last_error=None))

    def ended(self) -> None:
        """Note that what was registered is not served any more."""
        self._set(self.registration._replace(registered=False))

    def _set(self, registration: Registration) -> None:
        self.registration = registration
        self._changed.touch()

    def lost(self, why: str) -> None:
        """Say that a registration was lost, if there has been one."""
        if self.registration.registrations:
            log.event(log.REGISTRATION_LOST, resource=self._resource, why=why)


class End(StrEnum):
    """Why a life ended."""

    KUBELET_CHANGED = "the kubelet has a new socket"
    SOCKET_GONE = "our socket was removed"
    STREAM_ENDED = "the kubelet ended the stream"
    NO_STREAM = "the kubelet opened no stream"
    NOT_SERVED = "the socket could not be served"


class Life:
    """One server with its service, and who is told how it fares."""

    def __init__(
        self,
        resource: str,
        server: SocketServer,
        plugin: Plugin,
        standing: Standing,
        directory: SocketDir,
        news: Latest[None],
    ) -> None:
        """``news`` is touched when the directory, a stream or an answer may be other than before."""
        self.resource = resource
        self.server = server
        self.plugin = plugin
        self.standing = standing
        self.news = news
        self._directory = directory
        self._kubelet: Identity | None = None
        self.meet_kubelet()

    def meet_kubelet(self) -> None:
        """From now on it is about the kubelet that is there now."""
        self._kubelet = self._directory.kubelet.get()

    @property
    def same_kubelet(self) -> bool:
        """False if the kubelet that was met has gone, or another has come.

        One that reads the list is there, whatever has become of the names of its sockets.
        """
        now = self._directory.kubelet.get()
        return now == self._kubelet or (now is None and self.streaming)

    @property
    def streaming(self) -> bool:
        """True while the kubelet reads the list."""
        return self.plugin.streams > 0

    @property
    def stream_ended(self) -> bool:
        """True if the kubelet has read the list and does so no more."""
        return self.plugin.streamed and not self.streaming

    async def until(self, condition: Callable[[], bool], limit: float | None = None) -> bool:
        """Wait, woken by news, until the condition holds; False if ``limit`` seconds passed first."""
        return await until(self.news, condition, limit)


class Way(Protocol):
    """How the kubelet gets to know of a resource; one object serves all lives of all resources."""

    @property
    def directory(self) -> SocketDir:
        """Where the sockets are."""
        ...

    @property
    def wanted(self) -> bool:
        """True if there is somebody to serve."""
        ...

    def server(self, resource: str, plugin: Plugin, standing: Standing) -> SocketServer:
        """The server for one life, not started, with a name that was never used before."""
        ...

    async def register(self, life: Life) -> bool:
        """Have the served resource registered, however often that fails; False if its socket went."""
        ...

    def over(self, life: Life) -> bool:
        """True if the registration is no longer good: whoever holds it has to see that."""
        ...

    async def hold(self, life: Life) -> End:
        """Wait until the registration is no longer good; return why."""
        ...


async def until(news: Latest[None], condition: Callable[[], bool], limit: float | None = None) -> bool:
    """Wait, woken by news, until the condition holds; False if ``limit`` seconds passed first."""
    if condition():
        return True
    with anyio.move_on_after(limit):
        while not condition():
            await news.newer(news.version)
    return condition()
