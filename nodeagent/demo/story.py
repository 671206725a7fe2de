# SPDX-License-Identifier: Apache-2.0
"""The demo: the real daemon lives through what happens to a node, and shows what it makes of it.

Each step does something to the host or the kubelet, says what must come of it, and waits for that. What does
not happen ends the demo with exit code 1 and the end of the daemon's log. Nothing stays behind: neither
process nor directory, also after Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from typing import NamedTuple

import anyio

from nodeagent.base import terminal
from nodeagent.base.terminal import Paint
from nodeagent.demo import cluster, daemon, passthrough, stage, vgpus
from nodeagent.demo.acting import Act
from nodeagent.demo.daemon import DemoFailed
from nodeagent.demo.screen import Screen

PATIENCE = 15.0  # seconds; what is shown takes less than one of them
FINE, FAILED = 0, 1


def run(keep: bool, page: bool = False, patience: float = PATIENCE) -> int:
    """Play all steps on stdout; the exit code. ``keep``: then leave all of it running until Ctrl-C.

    ``page``: say where the status page is. ``patience``: seconds after which what did not happen counts as
    failed.
    """
    environ = dict(os.environ)
    paint, columns = Paint.of(sys.stdout, environ), terminal.columns(sys.stdout, environ)
    screen = Screen(sys.stdout, paint, columns)
    with tempfile.TemporaryDirectory(prefix="nodeagent-demo-") as directory:
        return anyio.run(_perform, directory, screen, _Wishes(keep, page, patience))


@dataclass(slots=True)
class _Outcome:
    """How it went so far."""

    code: int = FAILED
    unheard: BrokenPipeError | None = None  # the reader of our output has gone


class _Wishes(NamedTuple):
    """What is asked of the demo, as ``run`` tells it."""

    keep: bool
    page: bool
    patience: float


async def _perform(directory: str, screen: Screen, wishes: _Wishes) -> int:
    """The whole evening: ends after the last step, at the first failure, or by a signal."""
    outcome = _Outcome()
    async with anyio.create_task_group() as group:
        group.start_soon(_end_on_signals, group.cancel_scope, name="signals")
        async with stage.opened(directory, wishes.patience, page=wishes.page) as opened:
            await _play(Act(opened, screen), wishes.keep, outcome)
        group.cancel_scope.cancel()
    if outcome.unheard is not None:
        raise outcome.unheard
    return outcome.code


async def _end_on_signals(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


async def _play(act: Act, keep: bool, outcome: _Outcome) -> None:
    """All steps; a failure is explained on stderr."""
    try:
        for step in passthrough.STEPS:
            act.screen.step(step.title)
            await step.play(act)
        for node in (vgpus, cluster):
            await node.play(act.screen, act.stage.patience)
        await (_keep(act, outcome) if keep else _end(act))
    except DemoFailed as failure:
        print(f"\nTHE DEMO HAS FAILED in {act.screen.where}\n{failure.lines()}", file=sys.stderr)
    except BrokenPipeError as error:
        outcome.unheard = error
    else:
        outcome.code = FINE


async def _end(act: Act) -> None:
    act.screen.step("The daemon ends")
    act.screen.do("send SIGTERM")
    act.screen.expect("exit code 0, and none of its sockets stays behind")
    code = await act.daemon.end()
    left = [path.name for path in act.kubelet.paths.plugins.iterdir() if path.is_socket()]
    act.verdict((code, left) == (0, ["kubelet.sock"]), f"exit code {code}, left behind: {left}")
    act.screen.end()


async def _keep(act: Act, outcome: _Outcome) -> None:
    outcome.code = FINE
    root = act.host.directory
    command = " ".join(act.daemon.command())
    verbs = ("status", "scan", f"explain {passthrough.REBOUND}", "config")
    act.screen.step("It goes on until you press Ctrl-C; in another terminal:")
    if act.daemon.page:
        act.screen.say(f"   open {await act.stage.page()}     # in a browser")
    for line in (
        f"cd {daemon.SOURCE}",
        *(f"{command} {verb}" for verb in verbs),
        f"tail -f {root}/{daemon.LOG_NAME}",
        f"rm {root}/dev/vfio/12        # a device node vanishes; touch it, and it is back",
        f"$EDITOR {root}{stage.CONFIG_PATH}  # taken over when you save it",
    ):
        act.screen.say(f"   {line}")
    await anyio.sleep_forever()
