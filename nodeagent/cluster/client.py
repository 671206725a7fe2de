# SPDX-License-Identifier: Apache-2.0
"""The client of kubernetes_asyncio in use: made when it is first needed, from credentials that are read then.

It is made anew after the server or TLS has refused it: another token or certificate may be in place by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio

from nodeagent import __version__
from nodeagent.base import threads
from nodeagent.cluster import door, refusals
from nodeagent.cluster.credentials import Credentials


class Current:
    """The client for new requests. One that was dropped is closed by the last request that waits for it."""

    def __init__(self, credentials: Credentials, limit: float) -> None:
        """``limit``: seconds for a program that a kubeconfig names."""
        self._credentials = credentials
        self._limit = limit
        self._making = anyio.Lock()
        self._client: Any = None
        self._waiting: Counter[Any] = Counter()  # requests without an answer, of each client

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Any]:
        """The client for one request, open until the answer begins.

        :raises ClusterUnavailable: if the credentials cannot be used.
        """
        client = await self._get()
        self._waiting[client] += 1
        try:
            yield client
        finally:
            self._waiting[client] -= 1
            await self._close_unused(client)

    def drop(self, refused: Any) -> None:
        """Use this client for no further request.

        Its streams end when it is closed; their watches open new ones with the next client.
        """
        if refused is self._client:
            self._client = None

    async def close(self) -> None:
        """Close the current client, as soon as no request waits for it."""
        client, self._client = self._client, None
        if client is not None:
            await self._close_unused(client)

    async def _close_unused(self, client: Any) -> None:
        if client is not self._client and not self._waiting[client]:
            del self._waiting[client]
            with anyio.CancelScope(shield=True):
                await client.close()

    async def _get(self) -> Any:
        async with self._making:
            if self._client is None:
                if not door.is_open():
                    await threads.call(door.kubernetes)  # a fifth of a second
                kubernetes = door.kubernetes()
                configuration = await self._credentials.load(kubernetes, self._limit)
                client = kubernetes.client(configuration)
                client.user_agent = f"nodeagent/{__version__}"
                self._client = client
            return self._client


@contextmanager
def understood(request: str) -> Iterator[None]:
    """:raises ClusterUnavailable: in place of whatever the library, TLS or the network raise."""
    try:
        yield
    except TimeoutError as error:
        raise refusals.silent(request) from error
    except OSError as error:
        raise refusals.unreachable(request, error) from error
    except Exception as error:
        if door.is_open() and isinstance(error, door.kubernetes().errors):
            raise refusals.unreachable(request, error) from error
        raise
