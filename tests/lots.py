# SPDX-License-Identifier: Apache-2.0
"""``make test``: all tests in five processes side by side, or what the arguments choose in one.

A test with the daemon as a process mostly waits, so two processors have room for four lots of those beside
the rest, which has some of them as well. One lot is told while it runs, the others after it,
each whole. The files of tests lie in memory where that has room: a hundred thousand small ones keep a disk
busy, and what waits for it looks like a loop that stands. Knows nothing of what is tested.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests import places

BLACKBOX = "tests/blackbox"
WAITING = 4  # lots of tests that mostly wait
GRACE = 10.0  # seconds
ROOM = 4 << 30  # bytes; a whole run was seen to write 0.9 GiB
PYTEST = (sys.executable, "-m", "pytest")
_ROOT = Path(__file__).parents[1]


def lots() -> list[list[str]]:
    """The arguments of each lot for pytest; all that is in none of the others is in the last.

    That are all tests in one process, which take a third of the time, and every tenth module of the others.
    """
    modules = sorted(str(path.relative_to(_ROOT)) for path in (_ROOT / BLACKBOX).glob("test_*.py"))
    alone = [module for number, module in enumerate(modules) if number % 10]
    waiting = [alone[number::WAITING] for number in range(WAITING)]
    return [*waiting, ["tests", *(f"--ignore={module}" for module in alone)]]


def side_by_side(commands: Sequence[Sequence[str]]) -> int:
    """Run the commands at the same time; 0 if all end so. None outlives this call."""
    first, *others = commands
    with ExitStack() as stack:
        told = [stack.enter_context(tempfile.TemporaryFile()) for _ in others]
        running = [
            _started(stack, command, output.fileno()) for command, output in zip(others, told, strict=True)
        ]
        code = _started(stack, first, None).wait()
        for process, output in zip(running, told, strict=True):
            code = process.wait() or code
            output.seek(0)
            sys.stdout.buffer.write(output.read())
            sys.stdout.flush()
    return 1 if code else 0


def _at(place: Path, lot: Sequence[str]) -> list[str]:
    """The command that keeps the files of its tests there. The path is short: sockets lie below it."""
    return [*PYTEST, f"--basetemp={place}", *lot]


def _started(stack: ExitStack, command: Sequence[str], output: int | None) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, cwd=_ROOT, stdout=output, stderr=None if output is None else output)
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does: pytest then ends what its tests have started. Does nothing to what has ended."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:  # a shell starts what is in the background deaf to it
        process.kill()
        process.wait()


def main(arguments: Sequence[str]) -> int:
    """Run them; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if arguments:
        return side_by_side([[*PYTEST, *arguments]])
    with places.in_memory("", ROOM) as place:
        return side_by_side([_at(place / str(number), lot) for number, lot in enumerate(lots())])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
