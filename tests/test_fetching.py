# SPDX-License-Identifier: Apache-2.0
"""What tests ask of an HTTP server leaves nothing open, whatever the answer."""

from __future__ import annotations

import gc
import threading
import urllib.error
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests import fetching


class Prometheus(BaseHTTPRequestHandler):
    """Not ready yet, as it is while it reads its data; then ready."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/ready" else 503)
        self.end_headers()
        self.wfile.write(b"said")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Says nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Prometheus) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_an_answer_is_its_text(address: str) -> None:
    assert fetching.body(f"{address}/ready") == "said"


def test_a_refusal_leaves_no_connection_open_however_long_its_error_lives(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="503") as refused:
        fetching.body(address)
    circle: list[object] = [refused.value]
    circle.append(circle)
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        del refused, circle
        gc.collect()
    assert complaints == []
