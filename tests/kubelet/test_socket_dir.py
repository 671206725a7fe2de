# SPDX-License-Identifier: Apache-2.0
"""The device-plugins directory: the lock, leftovers, and what rings the bell."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.base.errors import AlreadyRunning
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.config import words
from nodeagent.kubelet import node_lock, socket_dir
from nodeagent.kubelet.socket_dir import SocketDir
from tests.facts import names
from tests.hearing import Heard
from tests.kubelet.binding import bound

NAME = "nodeagent-0123456789-1-1.sock"


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    found = tmp_path / "device-plugins"
    found.mkdir()
    return found


@pytest.fixture
def watcher() -> Iterator[DirectoryWatcher]:
    found = DirectoryWatcher()
    yield found
    found.close()


@pytest.fixture
def directory(plugins: Path, watcher: DirectoryWatcher) -> Iterator[SocketDir]:
    found = SocketDir(str(plugins), watcher)
    yield found
    found.close()


def made_anew(directory: Path) -> None:
    """Another directory at the same path, on many file systems with the same inode number."""
    shutil.rmtree(directory)
    directory.mkdir()


def test_names_of_sockets_are_short_and_never_the_same() -> None:
    names = {
        socket_dir.socket_name(name, start + serial)
        for name in ("a/b", "a/c" * 80)
        for start in (time.time_ns() // 1_000_000, 1)  # a container's next start may have the same pid
        for serial in (1, 2)
    }
    assert len(names) == 8
    assert all(len(name) <= words.SOCKET_NAME and str(os.getpid()) in name for name in names)


def test_a_directory_gives_no_name_twice(directory: SocketDir) -> None:
    assert len({directory.new_name("a/b") for _ in range(20)}) == 20


def test_a_kubelet_whose_socket_gets_other_rights_is_the_same(directory: SocketDir, plugins: Path) -> None:
    with bound(plugins / "kubelet.sock"):
        directory.scan()
        before = directory.kubelet.get()
        (plugins / "kubelet.sock").chmod(0o700)
        directory.scan()
        assert before is not None
        assert directory.kubelet.get() == before


def test_a_second_daemon_is_told_and_the_first_goes_on(
    directory: SocketDir, plugins: Path, watcher: DirectoryWatcher
) -> None:
    directory.open()
    second = SocketDir(str(plugins), watcher)
    with pytest.raises(AlreadyRunning, match=str(plugins)) as caught:
        second.open()
    names(caught.value.hint, "process")
    second.close()
    directory.scan()


def test_the_lock_ends_with_the_first(directory: SocketDir, plugins: Path, watcher: DirectoryWatcher) -> None:
    directory.open()
    directory.close()
    second = SocketDir(str(plugins), watcher)
    second.open()
    second.close()


def test_a_directory_that_could_not_be_locked_at_the_start_is_locked_as_soon_as_it_can(
    directory: SocketDir, plugins: Path, watcher: DirectoryWatcher
) -> None:
    """A directory in the place of the file refuses it as a file system does that is read-only."""
    directory.close()
    (plugins / node_lock.LOCK).unlink(missing_ok=True)
    (plugins / node_lock.LOCK).mkdir()
    directory.open()
    (plugins / node_lock.LOCK).rmdir()
    directory.scan()
    with pytest.raises(AlreadyRunning):
        SocketDir(str(plugins), watcher).scan()


def test_the_agents_own_directory_keeps_another_out_where_the_kubelet_has_none(
    tmp_path: Path, watcher: DirectoryWatcher
) -> None:
    own = tmp_path / "run" / "nodeagent"
    first, second = (SocketDir(str(tmp_path / "none"), watcher, own=str(own)) for _ in range(2))
    first.scan()
    with pytest.raises(AlreadyRunning, match=f"{own} already: process"):
        second.scan()
    first.close()
    second.scan()
    second.close()


def test_one_that_is_not_exclusive_takes_no_lock(
    directory: SocketDir, plugins: Path, watcher: DirectoryWatcher
) -> None:
    directory.open()
    other = SocketDir(str(plugins), watcher, exclusive=False)
    other.open()
    other.close()


def test_a_directory_that_was_made_anew_is_locked_anew(
    directory: SocketDir, plugins: Path, watcher: DirectoryWatcher
) -> None:
    directory.open()
    made_anew(plugins)
    directory.scan()
    with pytest.raises(AlreadyRunning):
        SocketDir(str(plugins), watcher).scan()


def test_a_lock_file_that_was_removed_is_locked_anew(
    directory: SocketDir, plugins: Path, watcher: DirectoryWatcher
) -> None:
    directory.open()
    (plugins / node_lock.LOCK).unlink()
    directory.scan()
    with pytest.raises(AlreadyRunning):
        SocketDir(str(plugins), watcher).scan()


def test_a_directory_that_another_took_meanwhile_ends_us(
    directory: SocketDir, plugins: Path, watcher: DirectoryWatcher
) -> None:
    directory.open()
    made_anew(plugins)
    other = SocketDir(str(plugins), watcher)
    other.scan()
    with pytest.raises(AlreadyRunning):
        directory.scan()
    other.close()


async def test_being_ended_by_another_comes_out_of_the_watch(
    directory: SocketDir, plugins: Path, watcher: DirectoryWatcher
) -> None:
    directory.open()
    made_anew(plugins)
    other = SocketDir(str(plugins), watcher)
    other.scan()
    with anyio.fail_after(5), pytest.raises(AlreadyRunning):
        await watcher.run()
    other.close()


def test_an_absent_directory_is_waited_for(tmp_path: Path, watcher: DirectoryWatcher) -> None:
    directory = SocketDir(str(tmp_path / "later"), watcher)
    directory.open()
    found = [directory.exists]
    assert directory.kubelet.get() is None
    (tmp_path / "later").mkdir()
    directory.scan()
    assert [*found, directory.exists] == [False, True]
    assert (tmp_path / "later" / node_lock.LOCK).exists()
    directory.close()


def test_only_own_sockets_that_nobody_serves_are_removed(directory: SocketDir, plugins: Path) -> None:
    served, dead = bound(plugins / "nodeagent-served.sock"), bound(plugins / "nodeagent-dead.sock")
    foreign = bound(plugins / "vendor.sock")
    served.listen()
    dead.close()
    foreign.close()
    (plugins / "nodeagent-notes.txt").write_text("")
    directory.open()
    left = sorted(os.listdir(plugins))
    served.close()
    assert left == ["nodeagent-notes.txt", "nodeagent-served.sock", node_lock.LOCK, "vendor.sock"]


def test_the_kubelets_socket_is_known_by_its_identity(directory: SocketDir, plugins: Path) -> None:
    directory.open()
    assert directory.kubelet.get() is None
    with bound(plugins / "kubelet.sock"):
        directory.scan()
    first = directory.kubelet.get()
    assert first is not None
    assert directory.age < 5
    (plugins / "kubelet.sock").unlink()
    with bound(plugins / "kubelet.sock"):
        directory.scan()
    assert directory.kubelet.get() not in (None, first)
    directory.scan()
    assert directory.kubelet.version == 2


@asynccontextmanager
async def watched(directory: SocketDir, watcher: DirectoryWatcher) -> AsyncIterator[Heard[str | None]]:
    """What a listener hears while the directory is watched."""
    directory.open()
    heard: Heard[str | None] = Heard()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        with directory.listening(heard):
            yield heard
        tasks.cancel_scope.cancel()


def write_checkpoint(directory: SocketDir) -> None:
    """As the kubelet does at each list."""
    Path(directory.path, ".1").write_text("{}")
    Path(directory.path, ".1").rename(Path(directory.path, socket_dir.CHECKPOINT))


async def written_checkpoint(directory: SocketDir) -> None:
    """Write the checkpoint, and wait for its event: the last so far."""
    seen = directory.checkpoint.version
    write_checkpoint(directory)
    with anyio.fail_after(5):
        await directory.checkpoint.newer(seen)


async def test_listeners_hear_of_our_sockets_by_name_and_of_no_other_file(
    directory: SocketDir, plugins: Path, watcher: DirectoryWatcher
) -> None:
    async with watched(directory, watcher) as heard:
        (plugins / ".123").write_text("")
        (plugins / "vendor.sock").write_text("")
        (plugins / "vendor.sock").unlink()
        await written_checkpoint(directory)
        assert heard.all == []
        with bound(plugins / NAME):
            await written_checkpoint(directory)
        (plugins / NAME).unlink()
        await written_checkpoint(directory)
        assert set(heard.all) == {NAME}
        assert len(heard.all) >= 2


async def test_listeners_hear_when_the_kubelets_socket_appears_and_when_it_goes(
    directory: SocketDir, plugins: Path, watcher: DirectoryWatcher
) -> None:
    async with watched(directory, watcher) as heard:
        with bound(plugins / "kubelet.sock"):
            await heard.until_told(None)
        await written_checkpoint(directory)
        heard.all.clear()
        (plugins / "kubelet.sock").unlink()
        await heard.until_told(None)


async def test_listeners_hear_when_the_directory_is_created_again(
    directory: SocketDir, plugins: Path, watcher: DirectoryWatcher
) -> None:
    async with watched(directory, watcher) as heard:
        made_anew(plugins)
        await heard.until_told(None)
    assert (plugins / node_lock.LOCK).exists()
