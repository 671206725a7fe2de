# SPDX-License-Identifier: Apache-2.0
"""The client of kubernetes_asyncio in use: made when it is first needed, from credentials that are read then.

It is made anew after the server or TLS has refused it: another token or certificate may be in place by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from nodeagent import __version__
from nodeagent.base import threads
from nodeagent.cluster import door, refusals
from nodeagent.cluster.credentials import Credentials


class Current:
    """At most one client at a time."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._making = anyio.Lock()
        self._client: Any = None

    async def get(self) -> Any:
        """The client. :raises ClusterUnavailable: if the credentials cannot be used."""
        async with self._making:
            if self._client is None:
                if not door.is_open():
                    await threads.call(door.kubernetes)  # a fifth of a second
                kubernetes = door.kubernetes()
                configuration = await self._credentials.load(kubernetes)
                client = kubernetes.client(configuration)
                client.user_agent = f"nodeagent/{__version__}"
                self._client = client
            return self._client

    async def drop(self, refused: Any = None) -> None:
        """Close it, if it is the one that was refused, or in any case.

        Streams that others have of it break off, and begin anew with the next one.
        """
        client = self._client
        if client is not None and refused in (None, client):
            self._client = None
            await client.close()


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
