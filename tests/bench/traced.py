# SPDX-License-Identifier: Apache-2.0
"""The daemon as a program that notes which functions of its own run: ``python -m tests.bench.traced FILE …``.

SIGUSR1 begins anew, SIGUSR2 ends and writes FILE: a JSON list of [file, line, name]. What follows FILE are
the daemon's own arguments. All threads are watched from the start, since a thread cannot be told later.
Bodies of modules and classes are not functions; the fakes and generated code are not the daemon's.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = str(Path(__file__).parents[2] / "nodeagent") + "/"
FOREIGN = ("sim/", "demo/", "kubelet/api/")
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Trace:
    """Which functions have run since the last beginning; a call without one is not noted."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._on = False
        self._seen: set[CodeType] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """What the interpreter calls at each call, and each time a coroutine goes on."""
        if self._on and event == "call":
            self._seen.add(frame.f_code)

    def begin(self, *_: Any) -> None:
        """Forget what has run; note what runs from now on."""
        self._seen = set()
        self._on = True
        self._tell([])

    def end(self, *_: Any) -> None:
        """Note no more, and tell."""
        self._on = False
        names = {(code.co_filename, code.co_firstlineno, code.co_name) for code in self._seen if _own(code)}
        self._tell([(path.removeprefix(PACKAGE), line, name) for path, line, name in sorted(names)])

    def _tell(self, names: list[tuple[str, int, str]]) -> None:
        """Write the file whole: who waits for it may look at any time."""
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(names))
        os.replace(beside, self._path)


def _own(code: CodeType) -> bool:
    """True for a function of the daemon: one with locals of its own, which a module or class body lacks."""
    path = code.co_filename
    inside = path.startswith(PACKAGE) and not path.removeprefix(PACKAGE).startswith(FOREIGN)
    return inside and bool(code.co_flags & inspect.CO_OPTIMIZED) and code.co_name not in COMPREHENSIONS


def main() -> None:
    """Be the daemon."""
    trace = Trace(sys.argv[1])
    signal.signal(signal.SIGUSR1, trace.begin)
    signal.signal(signal.SIGUSR2, trace.end)
    sys.argv = ["nodeagent", *sys.argv[2:]]
    threading.setprofile(trace.note)
    sys.setprofile(trace.note)
    runpy.run_module("nodeagent", run_name="__main__")


if __name__ == "__main__":
    main()
