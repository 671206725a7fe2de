# SPDX-License-Identifier: Apache-2.0
"""Settings that are read again: a good file counts at once, a bad one leaves the old in force."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from nodeagent import config
from nodeagent.agent.config_loop import ConfigLoop
from nodeagent.base import log
from nodeagent.base.watching import Watcher
from tests.conftest import Said

GOOD = "apiVersion: nodeagent/v1\nresources: [{name: example.com/kvm, node: {path: /dev/kvm, count: 3}}]\n"
BAD = "apiVersion: nodeagent/v1\nresorces: []\n"
FIRST, SECOND = "53764d0e-85a0-42b4-af5c-2046b460b1d0", "53764d0e-85a0-42b4-af5c-2046b460b1d1"
DEFINITION = '{"mdev_type": "nvidia-222", "start": "auto"}'


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "etc" / "nodeagent" / "config.yaml"
    found.parent.mkdir(parents=True)
    return found


@pytest.fixture
async def desire(tmp_path: Path) -> AsyncIterator[ConfigLoop]:
    watcher = Watcher()
    found = ConfigLoop(config.load(str(tmp_path), {}, {}), str(tmp_path), {}, {}, lambda: None)
    found.watch(watcher)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        tasks.start_soon(found.run)
        yield found
        tasks.cancel_scope.cancel()
    watcher.close()


async def until_rules(desire: ConfigLoop, count: int) -> None:
    with anyio.fail_after(5):
        seen = -1
        while len(desire.cell.get().rules) != count:
            seen, _ = await desire.cell.newer(seen)


async def test_a_file_that_appears_is_read(file: Path, desire: ConfigLoop, said: Said) -> None:
    write(file, GOOD)
    await until_rules(desire, 1)
    assert desire.cell.get().node_paths == ("/dev/kvm",)
    assert desire.settings.desired is desire.cell.get()
    await anyio.wait_all_tasks_blocked()
    assert said(log.CONFIG_RELOADED) == [{"changed": "resources"}]


async def test_a_file_that_is_changed_in_place_is_read_again(tmp_path: Path, file: Path) -> None:
    write(file, GOOD)
    watcher = Watcher()
    desire = ConfigLoop(config.load(str(tmp_path), {}, {}), str(tmp_path), {}, {}, lambda: None)
    desire.watch(watcher)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        tasks.start_soon(desire.run)
        with file.open("r+") as opened:  # neither a new name nor another file under the old one
            opened.write(GOOD.replace("count: 3", "count: 4"))
        with anyio.fail_after(5):
            await desire.cell.newer(0)
        tasks.cancel_scope.cancel()
    watcher.close()
    assert desire.error is None


async def test_a_bad_file_leaves_the_old_settings_and_says_so(
    file: Path, desire: ConfigLoop, said: Said
) -> None:
    write(file, GOOD)
    await until_rules(desire, 1)
    write(file, BAD)
    await desire.one_turn()
    assert len(desire.cell.get().rules) == 1
    assert desire.error is not None
    assert "config.yaml:2" in desire.error
    assert "did you mean" in desire.error
    assert said(log.CONFIG_REFUSED)
    write(file, GOOD)
    await desire.one_turn()
    assert desire.error is None


async def test_a_file_that_says_the_same_changes_nothing(file: Path, desire: ConfigLoop, said: Said) -> None:
    write(file, GOOD)
    await until_rules(desire, 1)
    await anyio.wait_all_tasks_blocked()
    before = desire.cell.version
    write(file, "# the same\n" + GOOD)
    await desire.one_turn()
    assert desire.cell.version == before
    assert len(said(log.CONFIG_RELOADED)) == 1


async def test_a_signal_reads_again(tmp_path: Path, file: Path) -> None:
    desire = ConfigLoop(config.load(str(tmp_path), {}, {}), str(tmp_path), {}, {}, lambda: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desire.run)
        await anyio.wait_all_tasks_blocked()
        write(file, GOOD)
        desire.wake()
        await until_rules(desire, 1)
        tasks.cancel_scope.cancel()


async def test_flags_and_environment_still_win_after_a_reload(tmp_path: Path, file: Path) -> None:
    flags, environ = {"timing.settle": "3s"}, {"NODEAGENT_TIMING_RESYNC": "7s"}
    loaded = config.load(str(tmp_path), flags, environ)
    desire = ConfigLoop(loaded, str(tmp_path), flags, environ, lambda: None)
    write(file, "apiVersion: nodeagent/v1\ntiming: {settle: 1s, resync: 1s}\n")
    await desire.one_turn()
    assert (desire.settings.timing.settle, desire.settings.timing.resync) == (3.0, 7.0)


async def test_files_that_the_configuration_names_count_from_then_on(
    tmp_path: Path, file: Path, desire: ConfigLoop
) -> None:
    def defined() -> list[str]:
        return [each.uuid for each in desire.cell.get().mdevs.definitions]

    async def until_defined(*uuids: str) -> None:
        with anyio.fail_after(5):
            seen = -1
            while defined() != list(uuids):
                seen, _ = await desire.cell.newer(seen)

    write(file, "mdevs: {manage: true, mdevctl: true}\n")
    with anyio.fail_after(5):
        while not desire.cell.get().mdevs.manage:
            await desire.cell.newer(desire.cell.version)
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


async def test_a_new_warning_is_told_once(tmp_path: Path, file: Path, said: Said) -> None:
    desire = ConfigLoop(config.load(str(tmp_path), {}, {}), str(tmp_path), {}, {}, lambda: None)
    parent = tmp_path / "etc/mdevctl.d/0000:65:00.0"
    parent.mkdir(parents=True)
    write(parent / FIRST, "{")
    write(file, "mdevs: {manage: true, mdevctl: true}\n")
    await desire.one_turn()
    await desire.one_turn()
    (warning,) = said(log.CONFIG_WARNING)
    assert FIRST in str(warning["text"])


async def test_what_was_refused_is_read_again_and_told_once(tmp_path: Path, file: Path, said: Said) -> None:
    desire = ConfigLoop(config.load(str(tmp_path), {}, {}), str(tmp_path), {}, {}, lambda: None, again=0.02)
    write(file, f"mdevs: {{vgpuConfigFile: /elsewhere.yaml, vgpuConfig: a}}\n{GOOD}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desire.run)
        desire.wake()
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            while desire.error is None:
                await anyio.lowlevel.checkpoint()
        await desire.one_turn()
        write(
            tmp_path / "elsewhere.yaml",
            "version: v1\nvgpu-configs: {a: [{devices: all, vgpu-devices: {}}]}\n",
        )
        await until_rules(desire, 1)
        tasks.cancel_scope.cancel()
    assert desire.error is None
    assert len(said(log.CONFIG_REFUSED)) == 1


async def test_what_is_read_at_the_start_only_is_told_so(file: Path, desire: ConfigLoop, said: Said) -> None:
    write(file, "apiVersion: nodeagent/v1\ntiming: {settle: 2s}\ncdi: {specDir: /etc/cdi}\n")
    with anyio.fail_after(5):
        seen = -1
        while desire.settings.timing.settle != 2:
            seen, _ = await desire.cell.newer(seen)
    await anyio.wait_all_tasks_blocked()
    (event,) = said(log.CONFIG_RELOADED)
    assert event["changed"] == "timing.settle, cdi.specDir (read at the start only)"


async def test_other_settings_of_the_log_are_passed_on_once(tmp_path: Path, file: Path) -> None:
    told: list[tuple[str, str]] = []
    desire = ConfigLoop(
        config.load(str(tmp_path), {}, {}),
        str(tmp_path),
        {},
        {},
        lambda: None,
        lambda wanted: told.append((wanted.format, wanted.level)),
    )
    for level in ("debug", "debug", "info"):
        write(file, f"apiVersion: nodeagent/v1\nlog: {{level: {level}}}\n")
        await desire.one_turn()
    assert told == [("auto", "debug"), ("auto", "info")]
