# SPDX-License-Identifier: Apache-2.0
"""The demo as people run it: a program that ends by itself, fails loudly, and leaves nothing behind.

What each step shows is checked by the demo itself; here: that all steps come, that the README shows a real
run, and every way to its end.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio.to_thread
import pytest

from nodeagent.base import sockets
from nodeagent.base.terminal import Paint
from nodeagent.base.timeouts import Timeouts
from nodeagent.demo import story
from nodeagent.demo.node import STATUS_PATH, DemoFailed, DemoNode, Screen, open_node
from nodeagent.demo.story import CONFIG, GPU, TESLA, USB
from tests import fetching
from tests.facts import names

REPOSITORY = Path(__file__).parents[2]
STEPS = 13
NUMBERS = {GPU: (4, 4), USB: (4, 4), TESLA: (1, 0)}


def _command(directory: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    """The demo with its temporary files in ``directory``, with settings about that are not meant for it."""
    foreign = {"NODEAGENT_LOG_LEVEL": "nonsense", "NOTIFY_SOCKET": "/nonexistent"}
    environment = {"TMPDIR": str(directory), "PYTHONPATH": str(REPOSITORY), **foreign}
    return [sys.executable, "-m", "nodeagent", "demo", *words], os.environ | environment


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One whole run, started from a directory that has nothing to do with the source."""
    directory = tmp_path_factory.mktemp("demo")
    command, environment = _command(directory)
    done = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, timeout=50, check=False
    )
    assert list(directory.iterdir()) == []
    return done


def test_the_demo_plays_all_steps_and_ends_well(played: subprocess.CompletedProcess[str]) -> None:
    assert (played.returncode, played.stderr) == (0, "")
    numbers = [line.partition(".")[0] for line in _titles(played.stdout)]
    assert numbers == [str(number + 1) for number in range(STEPS)]


def test_every_expectation_is_kept_and_timed(played: subprocess.CompletedProcess[str]) -> None:
    expectations = [line for line in played.stdout.splitlines() if line.startswith("   expect")]
    assert len(expectations) >= 25
    assert all(re.search(r" ok, \d+ ms$", line) for line in expectations)


def test_without_a_terminal_the_output_has_no_colour(played: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in played.stdout


def test_the_readme_shows_a_real_run(played: subprocess.CompletedProcess[str]) -> None:
    """Every line of the README's block is a line of the demo, in its order; times may differ."""
    block = re.search(r"```text\n(1\. .*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert block is not None
    shown = [line for line in _timeless(block[1]) if line.strip() not in ("", "[...]")]
    assert _titles("\n".join(shown)) == _titles(played.stdout)
    real = iter(_timeless(played.stdout))
    for line in shown:
        assert line in real, f"the demo does not show this at this place: {line}"


def _titles(text: str) -> list[str]:
    """The titles of the steps."""
    return [line for line in text.splitlines() if re.match(r"\d+\.", line)]


def _timeless(text: str) -> list[str]:
    return [re.sub(r"[\d.]+ (m?s)", r"N \1", line) for line in text.splitlines()]


def test_what_does_not_happen_fails_loudly(tmp_path: Path) -> None:
    _, environment = _command(tmp_path)
    program = "from nodeagent.demo import story; raise SystemExit(story.run(keep=False, patience=0.0))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.endswith(" NO\n")
    names(done.stderr, "FAILED in step 1", "within 0 s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("play", [story.play_vgpus, story.play_cluster])
async def test_what_does_not_happen_on_another_node_is_the_same_failure(
    play: Callable[[Screen, float], Awaitable[None]],
) -> None:
    with pytest.raises(DemoFailed, match="within 0 s"):
        await play(_screen(), 0.0)


@contextmanager
def _playing(directory: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The demo in the background; killed if the test does not end it."""
    command, environment = _command(directory, *words)
    inherited = signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # nohup lets the tests, and what they start, ignore it
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGHUP, inherited)
        try:
            yield process
        finally:
            process.kill()


def _read_until(process: subprocess.Popen[str], text: str) -> str:
    """The first line that has this."""
    assert process.stdout is not None
    found = next((line for line in process.stdout if text in line), None)
    assert found is not None, f"the demo has ended without: {text}"
    return found


def _daemon(root: Path) -> int:
    """The process id of the daemon on that host, asked of the daemon itself."""
    return int(sockets.ask(f"{root}{STATUS_PATH}", "/status", Timeouts().local_socket_answer)["pid"])


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "terminal closed"])
def test_kept_running_it_can_be_asked_until_it_is_interrupted(tmp_path: Path, end: signal.Signals) -> None:
    with _playing(tmp_path, "--keep") as process:
        _read_until(process, "$EDITOR")
        (root,) = tmp_path.iterdir()
        pid = _daemon(root)
        assert _lives(pid)
        process.send_signal(end)
        assert process.wait() == 0
    assert not _lives(pid)
    assert list(tmp_path.iterdir()) == []


def test_with_a_page_it_says_where_in_its_first_step(tmp_path: Path) -> None:
    with _playing(tmp_path, "--page") as process:
        address = _read_until(process, "in a browser").split()[1]
        assert fetching.body(address).startswith("<!doctype html>")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_with_a_page_it_says_where_once_more_at_its_end_and_stays(tmp_path: Path) -> None:
    with _playing(tmp_path, "--page") as process:
        addresses = {_read_until(process, "in a browser").split()[1] for _ in range(2)}
        assert len(addresses) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert list(tmp_path.iterdir()) == []


def test_interrupted_on_its_way_it_leaves_nothing_behind(tmp_path: Path) -> None:
    with _playing(tmp_path) as process:
        _read_until(process, "3. ")
        (root,) = tmp_path.iterdir()
        pid = _daemon(root)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 1
    assert not _lives(pid)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    command, environment = _command(tmp_path)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []


@asynccontextmanager
async def _ready() -> AsyncIterator[DemoNode]:
    """A node on which the daemon has registered all its resources."""
    async with open_node(_screen(), patience=20.0) as node:
        node.configure(CONFIG)
        await node.start_daemon()
        await node.until(lambda: node.serves(NUMBERS))
        yield node


def _screen() -> Screen:
    return Screen(io.StringIO(), Paint(coloured=False))


async def test_a_daemon_that_dies_is_told() -> None:
    async with _ready() as node:
        os.kill(await anyio.to_thread.run_sync(_daemon, Path(node.host.directory)), signal.SIGKILL)
        with pytest.raises(DemoFailed, match="code -9"):
            await node.until(lambda: False)


async def test_a_configuration_that_is_refused_is_shown() -> None:
    async with open_node(_screen(), patience=20.0) as node:
        node.configure("nonsense: 1\n")
        await node.start_daemon()
        with pytest.raises(DemoFailed, match="code 2") as failure:
            await node.until(lambda: False)
        assert "nonsense" in failure.value.hint


async def test_a_reason_that_is_not_given_is_a_failure() -> None:
    async with _ready() as node:
        node.patience = 0.2
        with pytest.raises(DemoFailed, match=r"0000:86:00\.0.*group-held"):
            await node.reason("0000:86:00.0", "group-held")


async def test_a_cluster_that_is_not_followed_is_not_heard() -> None:
    async with _ready() as node:
        node.patience = 0.2
        with pytest.raises(DemoFailed, match="cluster"):
            await node.until_cluster(answers=True)
        with pytest.raises(DemoFailed, match="cluster"):
            await node.until_cluster(answers=False)


async def test_only_a_refusal_counts_as_one() -> None:
    async with _ready() as node:
        assert await node.refusal(GPU, "0000:86:00.0") == ""
        assert "0000:99:00.0" in await node.refusal(GPU, "0000:99:00.0")


def test_on_a_terminal_verdicts_are_coloured() -> None:
    stream = io.StringIO()
    screen = Screen(stream, Paint(coloured=True))
    screen.do("something")
    with screen.expect("a result"):
        pass
    with pytest.raises(DemoFailed), screen.expect("another"):
        raise DemoFailed("it did not happen")
    assert "\x1b[32mok\x1b[0m" in stream.getvalue()
    assert "\x1b[31mNO\x1b[0m" in stream.getvalue()
    assert screen.where == "step 0, expected: another"
