# SPDX-License-Identifier: Apache-2.0
"""Sends requests to the API server: plain paths and dicts, limits on time and size, one kind of exception.

The first request creates the client of kubernetes_asyncio and reads the credentials. After the server or TLS
has refused the client, the next request creates a new one, because the token or certificate may have been
replaced. Text from the server is not trusted: error messages quote only a short part of it, without
unprintable characters. After a failure, callers wait for the time that ``retry_delay`` returns, and retry.
"""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio

from nodeagent import __version__
from nodeagent.base import threads
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.timeouts import Backoff, Timeouts
from nodeagent.cluster import kube_client
from nodeagent.cluster.credentials import Credentials

Object = dict[str, Any]
Parameters = Sequence[tuple[str, str]]

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
MAX_ANSWER = 4 * 2**20  # bytes; etcd accepts objects of up to 1.5 MiB
_MAX_ERROR = 16 * 1024  # bytes of an error response that are read
_MAX_SHOWN = 200  # characters of quoted text from the server

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE, INVALID, TOO_MANY = 401, 403, 404, 409, 410, 422, 429
_HINTS = {
    UNAUTHORIZED: "renew the credentials: they are read again before each retry",
    FORBIDDEN: "grant nodeagent that permission: see its ClusterRole",
    NOT_FOUND: "install its definition (CRD) in the cluster, or disable the setting that needs it",
}
_BY_SANDBOX = {errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES}  # RestrictAddressFamilies=, IPAddressDeny=
_SANDBOX = "allow the service to reach the API server with the systemd drop-in in kubevirt.md"


class Expired(ClusterUnavailable):
    """Raised when a resource version is too old to continue a watch: a new list is needed."""


class TooLarge(ClusterUnavailable):
    """Raised when a response or an event exceeds the size limit."""

    def __init__(self, answer: str, limit: int) -> None:
        super().__init__(
            f"{answer} is larger than {limit >> 20} MiB, and is not read",
            "find the object that is so large, and make it smaller",
        )


class Session:
    """A client session, used within ``async with``; its requests only raise ``ClusterUnavailable``."""

    def __init__(self, credentials: Credentials, timeouts: Timeouts, *, max_answer: int = MAX_ANSWER) -> None:
        self.max_answer = max_answer
        self.timeouts = timeouts
        self._credentials = credentials
        self._making_client = anyio.Lock()
        self._client: Any = None
        self._unanswered: Counter[Any] = Counter()  # client → number of running requests

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._close_if_unused(client)

    async def get(self, path: str, parameters: Parameters = ()) -> Object:
        """Return the object or list at the path.

        :raises ClusterUnavailable: if there is no valid response.
        """
        return await self._call("GET", path, parameters)

    async def patch(self, path: str, body: Any, kind: str = JSON_PATCH) -> Object:
        """Return the patched object.

        :raises ClusterUnavailable: if the server has not confirmed the patch.
        """
        return await self._call("PATCH", path, body=body, kind=kind)

    async def create(self, path: str, body: Object, parameters: Parameters = ()) -> Object:
        """Return the created object.

        :raises ClusterUnavailable: if the server has not confirmed the creation.
        """
        return await self._call("POST", path, parameters, body)

    async def replace(self, path: str, body: Object) -> Object:
        """Return the replaced object; its ``resourceVersion`` in the body must be the current one.

        :raises ClusterUnavailable: if the server has not confirmed it; with CONFLICT for another version.
        """
        return await self._call("PUT", path, body=body)

    async def delete(self, path: str, version: str) -> Object:
        """Delete the object if it has this version.

        :raises ClusterUnavailable: if the server has not confirmed it; with CONFLICT for another version.
        """
        return await self._call("DELETE", path, body={"preconditions": {"resourceVersion": version}})

    @asynccontextmanager
    async def stream(
        self, path: str, parameters: Parameters, silence: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the chunks of an endless response, until the server sends nothing for ``silence`` seconds.

        :raises ClusterUnavailable: if the response does not start in time, is interrupted, or stays silent.
        """
        with _translate_errors(f"GET {path}"):
            with anyio.fail_after(self.timeouts.api_connect + self.timeouts.api_silence):
                response = await self._send("GET", path, parameters, silence)
            try:
                yield response.content.iter_any()
            finally:
                response.close()

    async def _call(
        self, method: str, path: str, parameters: Parameters = (), body: Any = None, kind: str = JSON
    ) -> Object:
        request = f"{method} {path}"
        with _translate_errors(request), anyio.fail_after(self.timeouts.api_answer):
            response = await self._send(method, path, parameters, self.timeouts.api_silence, body, kind)
            try:
                text = bytearray()
                async for piece in response.content.iter_any():
                    text += piece
                    if len(text) > self.max_answer:
                        raise TooLarge(f"the answer to {request}", self.max_answer)
            finally:
                response.close()  # a response that was read to its end has already returned its connection
        return parse(bytes(text))

    async def _send(
        self,
        method: str,
        path: str,
        parameters: Parameters,
        silence: float,
        body: Any = None,
        kind: str = JSON,
    ) -> Any:
        """Return the response when its status is known. :raises ClusterUnavailable: for an error status."""
        async with self._use_client() as client:
            try:
                response = await client.call_api(
                    path,
                    method,
                    query_params=list(parameters),
                    header_params={"Content-Type": kind, "Accept": JSON},
                    body=body,
                    auth_settings=["BearerToken"],  # without this, no Authorization header is sent
                    _preload_content=False,
                    _request_timeout=(self.timeouts.api_connect, silence),
                )
            except kube_client.kubernetes().tls_errors:
                self._replace_client(client)  # the certificate may have been replaced
                raise
            if response.status < 300:
                return response
            text = await response.content.read(_MAX_ERROR)
            response.close()
            if response.status == UNAUTHORIZED:
                self._replace_client(client)  # the next request reads the credentials again
        retry_after = response.headers.get("Retry-After", "")
        raise error_of_status(f"{method} {path}", response.status, text, retry_after)

    @asynccontextmanager
    async def _use_client(self) -> AsyncIterator[Any]:
        """Provide the client for one request until the response starts.

        :raises ClusterUnavailable: if the credentials cannot be used.
        """
        async with self._making_client:
            if self._client is None:
                self._client = await self._make_client()
            client = self._client
        self._unanswered[client] += 1
        try:
            yield client
        finally:
            self._unanswered[client] -= 1
            await self._close_if_unused(client)

    async def _make_client(self) -> Any:
        if not kube_client.is_loaded():
            await threads.call(kube_client.kubernetes)
        kubernetes = kube_client.kubernetes()
        configuration = await self._credentials.load(kubernetes, self.timeouts.credential_program)
        client = kubernetes.client(configuration)
        client.user_agent = f"nodeagent/{__version__}"
        return client

    def _replace_client(self, refused: Any) -> None:
        """Do not use this client for further requests.

        The last running request closes the client, which ends its streams; the watches then use the next
        client.
        """
        if refused is self._client:
            self._client = None

    async def _close_if_unused(self, client: Any) -> None:
        if client is not self._client and not self._unanswered[client]:
            del self._unanswered[client]
            with anyio.CancelScope(shield=True):
                await client.close()


def parse(text: bytes) -> Object:
    """Return a JSON object. :raises ClusterUnavailable: if the text is not a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unreadable("no JSON") from error
    if not isinstance(value, dict):
        raise unreadable("no JSON object")
    return value


# Errors


@contextmanager
def _translate_errors(request: str) -> Iterator[None]:
    """Convert exceptions of the library, of TLS and of the network.

    :raises ClusterUnavailable: in their place.
    """
    try:
        yield
    except TimeoutError as error:
        raise ClusterUnavailable(f"{request}: the API server does not answer") from error
    except OSError as error:
        raise unreachable(request, error) from error
    except Exception as error:
        if kube_client.is_loaded() and isinstance(error, kube_client.kubernetes().errors):
            raise unreachable(request, error) from error
        raise


def unreachable(request: str, error: Exception) -> ClusterUnavailable:
    """Return the exception for a failure of the network, TLS or HTTP."""
    by_sandbox = isinstance(error, OSError) and error.errno in _BY_SANDBOX
    return ClusterUnavailable(
        f"{request}: {_printable(str(error) or type(error).__name__)}", _SANDBOX if by_sandbox else ""
    )


def unreadable(why: str) -> ClusterUnavailable:
    """Return the exception for a response that cannot be parsed."""
    return ClusterUnavailable(
        f"the API server sends an invalid response: {why}",
        "check that the address is that of a Kubernetes API server, and check proxies in between",
    )


def error_of_status(request: str, status: int, text: bytes, retry_after: str = "") -> ClusterUnavailable:
    """Return the exception for an HTTP status.

    ``text`` is the body of the response (a Status object or any text), ``retry_after`` its Retry-After
    header.
    """
    try:
        message = str(json.loads(text)["message"])
    except (ValueError, TypeError, KeyError, RecursionError):
        message = text.decode(errors="replace")
    # Retry-After may be a date (RFC 9110, section 10.2.3); Kubernetes sends seconds
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    kind = Expired if status == GONE else ClusterUnavailable
    what = f"{request}: {status} {_printable(message)}".rstrip()
    return kind(what, _HINTS.get(status, ""), status=status, after=seconds)


def _printable(text: str) -> str:
    on_one_line = " ".join(text[: 4 * _MAX_SHOWN].split())
    return "".join(each for each in on_one_line if each.isprintable())[:_MAX_SHOWN]


# Retries


def retry_delay(error: ClusterUnavailable, attempt: int, jitter: float, timeouts: Timeouts) -> float:
    """Return the seconds before the next request.

    ``attempt`` counts consecutive failures from 0; ``jitter`` is from 0 to 1. Thousands of nodes fail at
    the same moment, so every pause is randomized. After errors that need manual intervention, or that are
    expensive for the server, the pause is minutes.
    """
    if error.status == FORBIDDEN or isinstance(error, TooLarge):
        backoff: Backoff = timeouts.api_retry_refused
    else:
        backoff = timeouts.api_retry_absent if error.status == NOT_FOUND else timeouts.api_retry
    pause = backoff.delay(attempt, jitter)
    requested = min(error.after, timeouts.api_retry_after)
    # never sooner than the server allows, and not on all nodes at once
    return max(pause, requested * (1.0 + jitter / 4))
