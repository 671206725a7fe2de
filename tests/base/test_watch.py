# SPDX-License-Identifier: Apache-2.0
"""Watching directories with the real inotify, and with a kernel that gives no more watches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from nodeagent.base.watch import Change, DirectoryWatcher
from tests.hearing import Heard
from tests.mounts import mounted, needs_root
from tests.namespaces import ALONE, namespaces


@pytest.fixture
async def watcher() -> AsyncIterator[DirectoryWatcher]:
    """A running instance."""
    instance = DirectoryWatcher()
    async with anyio.create_task_group() as group:
        group.start_soon(instance.run)
        yield instance
        group.cancel_scope.cancel()
    instance.close()


@pytest.fixture
def heard() -> Heard[Change]:
    return Heard()


def lost(directory: Path) -> Change:
    return Change(str(directory), lost=True)


def overflow(directory: Path) -> None:
    """Make more events than the kernel's queue takes."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(limit // 2 + 100):
        (directory / f"{number % 7}").touch()
        (directory / f"{number % 7}").unlink()


async def test_names_that_come_and_go_are_told(
    watcher: DirectoryWatcher, tmp_path: Path, heard: Heard[Change]
) -> None:
    watcher.watch(str(tmp_path), heard)
    (tmp_path / "a").touch()
    await heard.until_told(Change(str(tmp_path), "a", lost=False))
    heard.clear()
    (tmp_path / "a").unlink()
    await heard.until_told(Change(str(tmp_path), "a", lost=False))


async def test_contents_are_told_only_to_those_who_asked(
    watcher: DirectoryWatcher, tmp_path: Path, heard: Heard[Change]
) -> None:
    (tmp_path / "a").touch()
    other: Heard[Change] = Heard()
    watcher.watch(str(tmp_path), other)
    watcher.watch(str(tmp_path), heard, contents=True)
    (tmp_path / "a").write_text("new")
    await heard.until_told(Change(str(tmp_path), "a"))
    assert other.all == []
    (tmp_path / "b").touch()
    await other.until_told(Change(str(tmp_path), "b"))


async def test_a_directory_that_is_absent_is_told_when_it_comes(
    watcher: DirectoryWatcher, tmp_path: Path, heard: Heard[Change]
) -> None:
    directory = tmp_path / "a" / "b" / "c"
    watcher.watch(str(directory), heard)
    directory.mkdir(parents=True)
    await heard.until_told(lost(directory))
    (directory / "x").touch()
    await heard.until_told(Change(str(directory), "x"))


async def test_a_directory_that_comes_step_by_step_is_armed(
    watcher: DirectoryWatcher, tmp_path: Path, heard: Heard[Change]
) -> None:
    directory = tmp_path / "a" / "b"
    watcher.watch(str(directory), heard)
    ancestor: Heard[Change] = Heard()
    watcher.watch(str(tmp_path), ancestor)
    (tmp_path / "a").mkdir()
    await ancestor.until_told(Change(str(tmp_path), "a"))
    assert heard.all == []
    directory.mkdir()
    await heard.until_told(lost(directory))


@pytest.mark.parametrize("held_open", [False, True], ids=["plain", "held open by a process"])
async def test_a_directory_that_is_made_anew_stays_watched(
    watcher: DirectoryWatcher, tmp_path: Path, heard: Heard[Change], held_open: bool
) -> None:
    directory = tmp_path / "vfio"
    directory.mkdir()
    watcher.watch(str(directory), heard)
    fd = os.open(directory, os.O_RDONLY) if held_open else None
    directory.rmdir()
    await heard.until_told(lost(directory))
    heard.clear()
    directory.mkdir()
    await heard.until_told(lost(directory))
    (directory / "12").touch()
    await heard.until_told(Change(str(directory), "12"))
    if fd is not None:
        os.close(fd)


async def test_a_tree_that_is_removed_step_by_step_and_made_anew_stays_watched(
    watcher: DirectoryWatcher, tmp_path: Path, heard: Heard[Change]
) -> None:
    """A process that has the lowest directory open holds those above it: they raise no DELETE_SELF."""
    directory = tmp_path / "kubelet" / "device-plugins"
    directory.mkdir(parents=True)
    watcher.watch(str(directory), heard)
    fd = os.open(directory, os.O_RDONLY)
    directory.rmdir()
    await heard.until_told(lost(directory))
    heard.clear()
    directory.parent.rmdir()
    above: Heard[Change] = Heard()
    watcher.watch(str(tmp_path), above)
    (tmp_path / "later").touch()
    await above.until_told(Change(str(tmp_path), "later"))  # the removal was reported before
    directory.mkdir(parents=True)
    await heard.until_told(lost(directory))
    (directory / "x").touch()
    await heard.until_told(Change(str(directory), "x"))
    os.close(fd)


@needs_root
async def test_the_check_finds_a_file_system_that_is_mounted_over_a_directory(
    tmp_path: Path, heard: Heard[Change]
) -> None:
    watcher = DirectoryWatcher(str(tmp_path))
    watcher.watch(str(tmp_path / "a"), heard)
    (tmp_path / "a").mkdir()
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        await heard.until_told(lost(tmp_path / "a"))
        heard.clear()
        group.start_soon(watcher.check, 0.01)
        with mounted(tmp_path / "a"):
            await heard.until_told(lost(tmp_path / "a"))
            (tmp_path / "a" / "x").touch()
            await heard.until_told(Change(str(tmp_path / "a"), "x"))
        group.cancel_scope.cancel()
    watcher.close()


async def test_a_directory_that_another_one_replaces_is_watched(
    watcher: DirectoryWatcher, tmp_path: Path, heard: Heard[Change]
) -> None:
    directory, new = tmp_path / "conf.d", tmp_path / "new"
    directory.mkdir()
    new.mkdir()
    watcher.watch(str(directory), heard)
    directory.rename(tmp_path / "old")
    new.rename(directory)
    await heard.until_told(lost(directory))
    (directory / "x").touch()
    await heard.until_told(Change(str(directory), "x"))
    heard.clear()
    (tmp_path / "old" / "y").touch()
    (directory / "z").touch()
    await heard.until_told(Change(str(directory), "z"))
    assert Change(str(directory), "y") not in heard.all


async def test_two_paths_of_one_directory_are_both_told(
    watcher: DirectoryWatcher, tmp_path: Path, heard: Heard[Change]
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    watcher.watch(str(tmp_path / "real"), heard)
    watcher.watch(str(tmp_path / "link"), heard)
    (tmp_path / "real" / "x").touch()
    await heard.until_told(Change(str(tmp_path / "real"), "x"))
    await heard.until_told(Change(str(tmp_path / "link"), "x"))


async def test_who_ends_a_subscription_is_told_nothing_more(
    watcher: DirectoryWatcher, tmp_path: Path, heard: Heard[Change]
) -> None:
    other: Heard[Change] = Heard()
    watcher.watch(str(tmp_path), heard)
    watcher.watch(str(tmp_path), other)
    watcher.unwatch(str(tmp_path), heard)
    watcher.unwatch(str(tmp_path), heard)
    (tmp_path / "x").touch()
    await other.until_told(Change(str(tmp_path), "x"))
    assert heard.all == []
    watcher.unwatch(str(tmp_path), other)
    assert watcher.watches == 0


async def test_a_subscriber_can_replace_all_its_directories(
    watcher: DirectoryWatcher, tmp_path: Path, heard: Heard[Change]
) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for each in (one, two, three):
        each.mkdir()
    assert watcher.watch_only((str(one), str(two)), heard) == {str(one), str(two)}
    assert watcher.watch_only((str(two), str(three)), heard) == {str(three)}
    (one / "x").touch()
    (three / "x").touch()
    await heard.until_told(Change(str(three), "x"))
    assert heard.all == [Change(str(three), "x")]
    watcher.watch_only((), heard)
    assert watcher.watches == 0


@pytest.mark.usefixtures("loop_may_block")
async def test_an_overflow_tells_all_to_list_again(tmp_path: Path, heard: Heard[Change]) -> None:
    watcher = DirectoryWatcher()
    other: Heard[Change] = Heard()
    quiet = tmp_path / "quiet"
    quiet.mkdir()
    watcher.watch(str(quiet), other)
    watcher.watch(str(tmp_path), heard)
    await anyio.to_thread.run_sync(overflow, tmp_path)
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        await other.until_told(lost(quiet))
        await heard.until_told(lost(tmp_path))
        group.cancel_scope.cancel()
    assert watcher.overflows == 1
    watcher.close()


@pytest.mark.skipif(not namespaces(), reason="no user namespace: the machine's own limit is left alone")
def test_what_the_kernel_refuses_to_watch_is_known_and_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    done = subprocess.run(
        [*ALONE, sys.executable, "-m", "tests.base.few_watches", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == f"('{tmp_path}/b',)\n{tmp_path}/b ()\n"


async def test_a_reader_that_starts_again_tells_all_to_list_again(
    tmp_path: Path, heard: Heard[Change]
) -> None:
    watcher = DirectoryWatcher()
    watcher.watch(str(tmp_path), heard)
    for expected in ([], [lost(tmp_path)]):
        with anyio.move_on_after(0.05):
            await watcher.run()
        assert heard.all == expected
    watcher.close()


@pytest.mark.skipif(not namespaces(), reason="no user namespace: the machine's own limit is left alone")
def test_without_an_instance_all_is_polled_until_there_is_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [*ALONE, sys.executable, "-m", "tests.base.few_instances", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "0 True\n()\n"
