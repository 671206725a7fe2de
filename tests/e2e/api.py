# SPDX-License-Identifier: Apache-2.0
"""A small client of the API server: JSON over TLS, one connection for each question."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, TypeVar

from tests.e2e import waiting
from tests.e2e.certificates import Certificates

T = TypeVar("T")
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Answer(OSError):
    """Raised when the API server refuses (404: not yet there); ``status`` is the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Stream:
    """The events of a watch."""

    def __init__(self, connection: http.client.HTTPSConnection, response: http.client.HTTPResponse) -> None:
        self._connection, self._response = connection, response

    def events(self) -> Iterator[Any]:
        """The events as they come, until ``stop``."""
        with suppress(OSError, http.client.HTTPException):  # stopped in the middle of a chunk
            for line in self._response:
                yield json.loads(line)

    def stop(self) -> None:
        """End the events; another thread may call it."""
        with suppress(OSError):  # the server has ended them
            self._connection.sock.shutdown(socket.SHUT_RDWR)


class Api:
    """The API server at a port of loopback, spoken to with the certificate of ``admin``."""

    def __init__(self, port: int, certificates: Certificates) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=certificates.path("ca.crt"))
        self._context.load_cert_chain(certificates.path("admin.crt"), certificates.path("admin.key"))

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        kind: str = "application/json",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> str:
        """The text of an answer; raises Answer for a refusal, OSError if the server is away."""
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=10, context=self._context)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": kind, **headers})
            response = connection.getresponse()
            text = response.read().decode()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()
        if response.status >= 400:
            raise Answer(response.status, text)
        return text

    def get(self, path: str) -> Any:
        """The object at that path."""
        return json.loads(self.ask("GET", path))

    def create(self, path: str, body: object) -> Any:
        """Make an object in the collection at that path."""
        return json.loads(self.ask("POST", path, body))

    def patch(self, path: str, body: object) -> Any:
        """Merge into the object at that path."""
        return json.loads(self.ask("PATCH", path, body, "application/merge-patch+json"))

    def delete(self, path: str, grace: int | None = None) -> None:
        """Delete the object at that path, with its own grace period or with another; 0 is by force."""
        self.ask("DELETE", path, None if grace is None else {"gracePeriodSeconds": grace})

    @contextmanager
    def watch(self, path: str) -> Iterator[Stream]:
        """The events of a watch, for another thread that waits for them."""
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._context)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            if response.status >= 400:
                raise Answer(response.status, response.read().decode())
            yield Stream(connection, response)
        finally:
            connection.close()

    def gone(self, path: str) -> bool:
        """True if there is no object at that path."""
        try:
            self.get(path)
        except Answer as answer:
            return answer.status == 404
        return False

    def until(self, path: str, condition: Callable[[Any], T | None], what: str, seconds: float = 20.0) -> T:
        """Wait until the condition holds for the object at that path."""
        return waiting.until(lambda: condition(self.get(path)), what, seconds)
