# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, told what to do over a pipe (Chrome DevTools Protocol, NUL after each message).

Blocks; for tests alone. What the page complains of (errors, what its policy forbids) is kept.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT = 20.0  # seconds for anything
_FLAGS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--hide-scrollbars",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ),
    *("--remote-debugging-pipe", "--force-color-profile=srgb"),
)


class Tab:
    """One page in the browser."""

    def __init__(self, send: int, receive: int) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._send = send
        self._receive = receive
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = os.read(self._receive, 1 << 20)
            assert chunk, "the browser has ended"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, url: str, width: int = 1280, height: int = 900) -> None:
        """Go to a page."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url=url)

    def theme(self, name: str) -> None:
        """Prefer "dark" or "light" from now on."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def value(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true in the page; its value."""
        end = time.monotonic() + LIMIT
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"{expression}\n{self.text()}\n{self.complaints}"
            time.sleep(0.05)
        return value

    def text(self) -> str:
        """All that can be read."""
        return str(self.value("document.body ? document.body.innerText : ''"))

    def press(self, key: str) -> None:
        """Press and release a key that gives this character."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save what is to be seen as PNG, or the ``whole`` page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(program: str, directory: Path) -> Iterator[Tab]:
    """A browser with one tab, its files below ``directory``; it is ended with the block."""
    to_read, to_send = _pipe()
    from_read, from_send = _pipe()
    actions = [  # Chromium reads on descriptor 3 and writes on 4
        (os.POSIX_SPAWN_DUP2, to_read, 3),
        (os.POSIX_SPAWN_DUP2, from_send, 4),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    command = [program, *_FLAGS, f"--user-data-dir={directory}"]
    pid = os.posix_spawn(program, command, os.environ, file_actions=actions)
    os.close(to_read)
    os.close(from_send)
    try:
        yield Tab(to_send, from_read)
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        os.close(to_send)
        os.close(from_read)


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are none of the first ten."""
    low = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return read, write
