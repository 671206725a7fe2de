# SPDX-License-Identifier: Apache-2.0
"""A stand-in API server for the tests and the demo: real HTTP or HTTPS on a port of loopback.

It lists, watches, gets, patches and creates objects of a few kinds as the real one does, asks for a token if
it is told which, counts what is asked of it, and misbehaves on demand (``faults``). What clients may not do,
the test or the demo does by the methods of ``store``.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import anyio
from aiohttp import web

from nodeagent.sim.apiserver.answers import Answers
from nodeagent.sim.apiserver.store import Store
from nodeagent.sim.faults import Faults

_END = 0.05  # seconds that handlers get when it stops: it is killed rather than ended


class ApiServer:
    """The stand-in; an async context manager that listens from entry to exit.

    ``tokens``: who may ask; nobody is refused if it is empty. ``denied``: verbs and resources that none of
    them may use ("patch", "nodes/status"). ``absent``: groups of the API that are not installed.

    ``faults`` are switched on and off, each for all kinds (``name``) or for one (``name:plural``): ``status``
    (a ``Refusal``), ``garbage``, ``drop`` (the connection closes without an answer), ``slow`` (seconds before
    each answer); of watches alone: ``eof`` (at once), ``half-line``, ``expired`` (an ERROR event of 410),
    ``hang`` (nothing more is said); of reviews: ``review`` (fields that replace those of the answer).
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.store = Store()
        self.faults = Faults(self.store.changes)
        self._answers = Answers(self.store, self.faults)
        self.statistics = self._answers.statistics
        self.tokens = self._answers.tokens
        self.denied = self._answers.denied
        self.absent = self._answers.absent
        self._tls = tls
        self._port = 0
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.stop()

    @property
    def url(self) -> str:
        """Where it listens, also after a restart."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen; on the same port as before, if there was one."""
        server = web.Server(self._answers.handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=_END)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Break all connections and listen no more; objects and versions stay."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def kubeconfig(self, path: Path, token: str = "", authority: str = "") -> str:
        """Write a kubeconfig for it; ``authority`` is the path of the certificate to trust. Its path."""
        cluster = {"server": self.url} | ({"certificate-authority": authority} if authority else {})
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": token} if token else {}}],
        }
        path.write_text(json.dumps(config))
        return str(path)

    async def until(self, predicate: Callable[[], bool], timeout: float = 5.0) -> None:  # noqa: ASYNC109 (as Kubelet.until)
        """Wait until it holds, looked at after each request and change. :raises TimeoutError: in the end."""
        with anyio.fail_after(timeout):
            while True:
                seen = self.store.changes.version
                if predicate():
                    return
                await self.store.changes.newer(seen)
