# SPDX-License-Identifier: Apache-2.0
"""Settings that are read again: a good file counts at once, a bad one leaves the old in force."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import anyio
import pytest

from nodeagent import config
from nodeagent.agent.config_loop import ConfigLoop
from nodeagent.base import log
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.config import Log, Settings, Sources
from tests.conftest import Said
from tests.facts import names

GOOD = "apiVersion: nodeagent/v1\nresources: [{name: example.com/kvm, node: {path: /dev/kvm, count: 3}}]\n"
BAD = "apiVersion: nodeagent/v1\nresorces: []\n"
FIRST, SECOND = "53764d0e-85a0-42b4-af5c-2046b460b1d0", "53764d0e-85a0-42b4-af5c-2046b460b1d1"
DEFINITION = '{"mdev_type": "nvidia-222", "start": "auto"}'
VGPU = "version: v1\nvgpu-configs: {a: [{devices: all, vgpu-devices: {}}]}\n"
PATIENCE = 10.0


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "nodeagent" / "config.yaml"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
async def watcher() -> AsyncIterator[DirectoryWatcher]:
    watcher = DirectoryWatcher()
    yield watcher
    watcher.close()


class Node:
    """The settings of a node, and the loop that keeps them fresh."""

    def __init__(
        self,
        root: Path,
        watcher: DirectoryWatcher,
        flags: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        sources = Sources(str(root), flags or {}, environ or {})
        self.logs: list[Log] = []
        self.settings = Latest(config.load(sources))
        self.loop = ConfigLoop(self.settings, sources, watcher, self.logs.append, Timeouts())

    @property
    def rules(self) -> int:
        return len(self.settings.get().configuration.rules)

    async def until(self, state: Callable[[Settings], bool], patience: float = PATIENCE) -> None:
        with anyio.fail_after(patience):
            seen = -1
            while not state(self.settings.get()):
                seen, _ = await self.settings.newer(seen)

    async def until_rules(self, count: int, patience: float = PATIENCE) -> None:
        await self.until(lambda settings: len(settings.configuration.rules) == count, patience)


@pytest.fixture
async def node(tmp_path: Path, watcher: DirectoryWatcher) -> AsyncIterator[Node]:
    """A node whose loop runs."""
    node = Node(tmp_path, watcher)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        tasks.start_soon(node.loop.run)
        yield node
        tasks.cancel_scope.cancel()


async def test_a_file_that_appears_is_read(file: Path, node: Node, said: Said) -> None:
    write(file, GOOD)
    await node.until_rules(1)
    await anyio.wait_all_tasks_blocked()
    assert said(log.CONFIG_RELOADED) == [{"changed": "resources"}]


async def test_a_file_that_is_changed_in_place_is_read_again(
    tmp_path: Path, file: Path, watcher: DirectoryWatcher
) -> None:
    write(file, GOOD)
    node = Node(tmp_path, watcher)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        tasks.start_soon(node.loop.run)
        with file.open("r+") as opened:  # neither a new name nor another file under the old one
            opened.write(GOOD.replace("count: 3", "count: 4"))
        with anyio.fail_after(PATIENCE):
            await node.settings.newer(0)
        tasks.cancel_scope.cancel()
    assert node.loop.problem is None


async def test_a_file_that_changes_before_the_loop_runs_is_read_again(
    tmp_path: Path, file: Path, watcher: DirectoryWatcher
) -> None:
    node = Node(tmp_path, watcher)
    write(file, GOOD)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(node.loop.run)
        await node.until_rules(1)
        tasks.cancel_scope.cancel()


async def test_a_bad_file_leaves_the_old_settings_and_says_so(file: Path, node: Node, said: Said) -> None:
    write(file, GOOD)
    await node.until_rules(1)
    write(file, BAD)
    await node.loop.one_turn()
    assert node.rules == 1
    assert node.loop.problem is not None
    assert "config.yaml:2" in node.loop.problem.message
    assert node.loop.problem.hint
    assert said(log.CONFIG_REFUSED)
    write(file, GOOD)
    await node.loop.one_turn()
    assert node.loop.problem is None


async def test_a_file_that_is_right_again_is_told_once_also_if_nothing_in_it_is_new(
    file: Path, node: Node, said: Said
) -> None:
    for text in (GOOD, BAD, GOOD, GOOD, BAD, GOOD.replace("count: 3", "count: 4")):
        write(file, text)
        await node.loop.one_turn()
    same, new = said(log.CONFIG_VALID)
    assert same["text"] != new["text"]


async def test_a_line_that_names_one_error_says_how_many_more_there_are(
    file: Path, node: Node, said: Said
) -> None:
    write(file, f"{BAD}tming: {{}}\nalias: {{}}\n")
    await node.loop.one_turn()
    (refused,) = said(log.CONFIG_REFUSED)
    names(str(refused["hint"]), 2, "nodeagent status")


async def test_settings_in_force_and_settings_refused_are_counted(file: Path, node: Node) -> None:
    at_start = node.loop.status
    assert (at_start.generation, at_start.refused, at_start.problem) == (1, 0, None)
    write(file, GOOD)
    await node.until_rules(1)
    write(file, BAD)
    for _ in range(3):  # one mistake, however often it is read
        await node.loop.one_turn()
    wrong = node.loop.status
    assert (wrong.generation, wrong.refused, wrong.problem) == (2, 1, node.loop.problem)
    assert wrong.since >= at_start.since
    write(file, GOOD)
    await node.loop.one_turn()
    again = node.loop.status
    assert (again.generation, again.refused, again.problem) == (2, 1, None)


async def test_a_label_that_chooses_nothing_leaves_the_old_settings(file: Path, node: Node) -> None:
    write(file, GOOD)
    await node.until_rules(1)
    write(file.parent / "vgpu.yaml", VGPU)
    label = "node: {labels: {nvidia.com/vgpu.config: b}}"
    write(file, f"mdevs: {{manage: true, vgpuConfigFile: /etc/nodeagent/vgpu.yaml}}\n{label}\n")
    await node.loop.one_turn()
    assert node.rules == 1
    assert node.loop.problem is not None
    names(node.loop.problem.message, "vgpu.yaml", '"b"')


async def test_a_file_that_says_the_same_changes_nothing(file: Path, node: Node, said: Said) -> None:
    write(file, GOOD)
    await node.until_rules(1)
    await anyio.wait_all_tasks_blocked()
    before = node.settings.version
    write(file, f"{GOOD}# the same\n")
    await node.loop.one_turn()
    assert node.settings.version == before
    assert len(said(log.CONFIG_RELOADED)) == 1


async def test_where_a_value_comes_from_is_kept_fresh_without_a_word(
    file: Path, node: Node, said: Said
) -> None:
    write(file, GOOD)
    await node.until_rules(1)
    write(file, f"# the same\n{GOOD}")
    await node.loop.one_turn()
    (rules,) = (value for value in node.settings.get().values if value.key == "resources")
    assert rules.source == "config.yaml:3"
    assert len(said(log.CONFIG_RELOADED)) == 1


async def test_a_signal_reads_again(tmp_path: Path, file: Path, watcher: DirectoryWatcher) -> None:
    node = Node(tmp_path, watcher)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.loop.run)
        await anyio.wait_all_tasks_blocked()
        write(file, GOOD)
        node.loop.wake()
        await node.until_rules(1)
        tasks.cancel_scope.cancel()


async def test_flags_and_environment_still_win_after_a_reload(
    tmp_path: Path, file: Path, watcher: DirectoryWatcher
) -> None:
    node = Node(tmp_path, watcher, {"timing.settle": "3s"}, {"NODEAGENT_TIMING_RESYNC": "7s"})
    write(file, "apiVersion: nodeagent/v1\ntiming: {settle: 1s, resync: 1s}\n")
    await node.loop.one_turn()
    timing = node.settings.get().timing
    assert (timing.settle, timing.resync) == (3.0, 7.0)


async def test_files_that_the_configuration_names_count_from_then_on(
    tmp_path: Path, file: Path, node: Node
) -> None:
    def defined(settings: Settings) -> list[str]:
        return [each.uuid for each in settings.configuration.imported.mdevctl.wanted]

    async def until_defined(*uuids: str) -> None:
        await node.until(lambda settings: defined(settings) == list(uuids))

    write(file, "mdevs: {manage: true, mdevctl: true}\n")
    await node.until(lambda settings: settings.configuration.mdevs.manage)
    parent = tmp_path / "etc/mdevctl.d/0000:65:00.0"
    parent.mkdir(parents=True)
    write(parent / FIRST, DEFINITION)
    await until_defined(FIRST)
    write(parent / SECOND, DEFINITION)
    await until_defined(FIRST, SECOND)
    write(parent / SECOND, DEFINITION.replace("auto", "manual"))
    await until_defined(FIRST)
    write(file, "mdevs: {manage: true}\n")
    await until_defined()


async def test_a_new_warning_is_told_once(
    tmp_path: Path, file: Path, watcher: DirectoryWatcher, said: Said
) -> None:
    node = Node(tmp_path, watcher)
    parent = tmp_path / "etc/mdevctl.d/0000:65:00.0"
    parent.mkdir(parents=True)
    write(parent / FIRST, "{")
    write(file, "mdevs: {manage: true, mdevctl: true}\n")
    await node.loop.one_turn()
    await node.loop.one_turn()
    (warning,) = said(log.CONFIG_WARNING)
    assert FIRST in str(warning["text"])


class HurriedSelector(selectors.DefaultSelector):
    """Waits a hundredth of the time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / 100)


class HurriedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock runs a hundred times as fast as ours."""

    def __init__(self) -> None:
        super().__init__(HurriedSelector())

    def time(self) -> float:
        return super().time() * 100


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"loop_factory": HurriedLoop})], ids=["hurried"])
async def test_what_was_refused_is_read_again_and_told_once(
    tmp_path: Path, file: Path, watcher: DirectoryWatcher, said: Said, loop_may_block: None
) -> None:
    node = Node(tmp_path, watcher)
    write(file, f"mdevs: {{vgpuConfigFile: /elsewhere.yaml, vgpuConfig: a}}\n{GOOD}")
    await node.loop.one_turn()
    assert node.loop.problem is not None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.loop.run)
        await node.loop.one_turn()
        write(tmp_path / "half.yaml", VGPU)  # where nobody watches; the loop reads from a thread of its own
        (tmp_path / "half.yaml").rename(tmp_path / "elsewhere.yaml")
        await node.until_rules(1, 100 * PATIENCE)
        tasks.cancel_scope.cancel()
    assert len(said(log.CONFIG_REFUSED)) == 1
    assert node.loop.problem is None


async def test_what_is_read_at_the_start_only_is_told_so(file: Path, node: Node, said: Said) -> None:
    write(file, "apiVersion: nodeagent/v1\ntiming: {settle: 2s}\ncdi: {specDir: /etc/cdi}\n")
    await node.until(lambda settings: settings.timing.settle == 2)
    await anyio.wait_all_tasks_blocked()
    (event,) = said(log.CONFIG_RELOADED)
    settle, spec_dir = str(event["changed"]).split(", ")
    assert settle == "timing.settle"
    names(spec_dir, "cdi.specDir", "start")


async def test_other_settings_of_the_log_are_passed_on_once(
    tmp_path: Path, file: Path, watcher: DirectoryWatcher
) -> None:
    node = Node(tmp_path, watcher)
    for level in ("debug", "debug", "info"):
        write(file, f"apiVersion: nodeagent/v1\nlog: {{level: {level}}}\n")
        await node.loop.one_turn()
    assert node.logs == [Log("auto", "debug"), Log("auto", "info")]


@pytest.mark.parametrize("text", [GOOD, "nonsense"])
async def test_a_reload_ends_when_the_file_has_been_read_whether_it_is_good_or_not(
    file: Path, node: Node, text: str
) -> None:
    await anyio.wait_all_tasks_blocked()
    write(file, text)
    with anyio.fail_after(PATIENCE):
        await node.loop.reload()
    assert (node.rules == 1) is (text == GOOD)
    assert (node.loop.problem is None) is (text == GOOD)
