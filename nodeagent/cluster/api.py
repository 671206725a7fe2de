# SPDX-License-Identifier: Apache-2.0
"""Requests to the API server: plain paths and dicts, limited in time and size, with one kind of error.

The client of kubernetes_asyncio is made for the first request, from credentials that are read then, and made
again after the server or TLS has refused it: another token or certificate may be in place by then. Texts from
the server are not trusted: errors quote a short part of them, and only characters that can be printed.
Callers retry, after the pause that ``retry_delay`` computes.
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
MAX_ANSWER = 4 * 2**20  # bytes; etcd accepts objects of 1.5 MiB
_MAX_ERROR = 16 * 1024  # bytes of an error's body that are read
_MAX_SHOWN = 200  # characters of a foreign text

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE, INVALID, TOO_MANY = 401, 403, 404, 409, 410, 422, 429
_HINTS = {
    UNAUTHORIZED: "renew the credentials: they are read again before each further try",
    FORBIDDEN: "give nodeagent the right to do that: see its ClusterRole",
    NOT_FOUND: "install what defines it in the cluster, or switch off what needs it here",
}
_BY_SANDBOX = {errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES}  # RestrictAddressFamilies=, IPAddressDeny=
_SANDBOX = "let the service reach the API server: kubevirt.md has the drop-in for systemd"


class Expired(ClusterUnavailable):
    """Raised when a resource version is too old to be watched from: a new list is needed."""


class TooLarge(ClusterUnavailable):
    """Raised when an answer or an event is larger than the limit."""

    def __init__(self, answer: str, limit: int) -> None:
        super().__init__(
            f"{answer} is larger than {limit >> 20} MiB, and is not read",
            "find the object that is so large, and make it smaller",
        )


class Session:
    """Requests with one client, within ``async with``; they raise ``ClusterUnavailable`` only."""

    def __init__(self, credentials: Credentials, timeouts: Timeouts, *, max_answer: int = MAX_ANSWER) -> None:
        self.max_answer = max_answer
        self.timeouts = timeouts
        self._credentials = credentials
        self._making_client = anyio.Lock()
        self._client: Any = None
        self._unanswered: Counter[Any] = Counter()  # client → requests

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._close_if_unused(client)

    async def get(self, path: str, parameters: Parameters = ()) -> Object:
        """The object or the list at that path. :raises ClusterUnavailable: if there is no answer."""
        return await self._call("GET", path, parameters)

    async def patch(self, path: str, body: Any, kind: str = JSON_PATCH) -> Object:
        """The patched object. :raises ClusterUnavailable: if it is not known to be patched."""
        return await self._call("PATCH", path, body=body, kind=kind)

    async def create(self, path: str, body: Object) -> Object:
        """The created object. :raises ClusterUnavailable: if it is not known to be created."""
        return await self._call("POST", path, body=body)

    @asynccontextmanager
    async def stream(
        self, path: str, parameters: Parameters, silence: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The pieces of an answer without an end, until the server is silent for that many seconds.

        :raises ClusterUnavailable: if it does not begin in time, breaks off, or is silent for too long.
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
                response.close()  # a response that was read to its end has returned its connection before
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
        """The response, once its status is known. :raises ClusterUnavailable: if the status is an error."""
        async with self._use_client() as client:
            try:
                response = await client.call_api(
                    path,
                    method,
                    query_params=list(parameters),
                    header_params={"Content-Type": kind, "Accept": JSON},
                    body=body,
                    auth_settings=["BearerToken"],  # without it no Authorization header is sent
                    _preload_content=False,
                    _request_timeout=(self.timeouts.api_connect, silence),
                )
            except kube_client.kubernetes().tls_errors:
                self._replace_client(client)  # another certificate may be in place by now
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
        """The client for one request, open until the answer begins.

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
        """Use this client for no further request. Its streams end when its last request has closed it; their
        watches open new ones with the next client.
        """
        if refused is self._client:
            self._client = None

    async def _close_if_unused(self, client: Any) -> None:
        if client is not self._client and not self._unanswered[client]:
            del self._unanswered[client]
            with anyio.CancelScope(shield=True):
                await client.close()


def parse(text: bytes) -> Object:
    """A JSON object. :raises ClusterUnavailable: if it is none."""
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
    """:raises ClusterUnavailable: in place of errors of the library, of TLS and of the network."""
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
    """The error for a failure of the network, TLS or HTTP."""
    by_sandbox = isinstance(error, OSError) and error.errno in _BY_SANDBOX
    return ClusterUnavailable(
        f"{request}: {_printable(str(error) or type(error).__name__)}", _SANDBOX if by_sandbox else ""
    )


def unreadable(why: str) -> ClusterUnavailable:
    """The error for an answer that cannot be interpreted."""
    return ClusterUnavailable(
        f"the API server answers what cannot be read: {why}",
        "check that the address leads to a Kubernetes API server, and what is in between",
    )


def error_of_status(request: str, status: int, text: bytes, retry_after: str = "") -> ClusterUnavailable:
    """The error for a status of HTTP; ``text`` is a Status object or any text, ``retry_after`` the header."""
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
    """Seconds before the next try; ``attempt`` counts failures in a row from 0, ``jitter`` is from 0 to 1.

    Thousands of nodes fail at the same moment, so every pause is spread. Errors that need manual
    intervention, or cost the server much at each try, wait for minutes.
    """
    if error.status == FORBIDDEN or isinstance(error, TooLarge):
        backoff: Backoff = timeouts.api_retry_refused
    else:
        backoff = timeouts.api_retry_absent if error.status == NOT_FOUND else timeouts.api_retry
    pause = backoff.delay(attempt, jitter)
    requested = min(error.after, timeouts.api_retry_after)
    return max(pause, requested * (1.0 + jitter / 4))  # never sooner, and not all at once
