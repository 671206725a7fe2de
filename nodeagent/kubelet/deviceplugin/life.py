# SPDX-License-Identifier: Apache-2.0
"""One life of a resource towards the kubelet, and what a way of registering makes of it.

A life is one server on one path, from its start to its end. There are two ways in which the kubelet gets to
know of it, each a small object that all resources share: a Register call (``registration``), and a file that
the kubelet's plugin watcher finds (``kubelet.plugin_watcher``). A life offers them what they need: its parts,
and waiting for any news of them. Does not know when the next life begins.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import anyio

from nodeagent.base.latest import Latest
from nodeagent.kubelet.deviceplugin.service import Plugin
from nodeagent.kubelet.deviceplugin.socketdir import Identity, SocketDir
from nodeagent.kubelet.deviceplugin.standing import Standing
from nodeagent.kubelet.grpc.server import SocketServer


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
        """False if the kubelet that was met has gone, or another has come."""
        return self._directory.kubelet.get() == self._kubelet

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
