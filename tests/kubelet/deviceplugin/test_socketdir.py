# SPDX-License-Identifier: Apache-2.0
"""The device-plugins directory: the lock, leftovers, and who is poked by what."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from nodeagent.base.errors import AlreadyRunning
from nodeagent.base.watching import Watcher
from nodeagent.config import scalars
from nodeagent.kubelet.deviceplugin import socketdir
from nodeagent.kubelet.deviceplugin.socketdir import SocketDir
from tests.hearing import Heard
from tests.kubelet.binding import bound

NAME = "nodeagent-0123456789-1-1.sock"


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    found = tmp_path / "device-plugins"
    found.mkdir()
    return found


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    found = Watcher()
    yield found
    found.close()


@pytest.fixture
def directory(plugins: Path, watcher: Watcher) -> Iterator[SocketDir]:
    found = SocketDir(str(plugins), watcher)
    yield found
    found.close()


def made_anew(directory: Path) -> None:
    """Another directory at the same path, on many file systems with the same inode number."""
    shutil.rmtree(directory)
    directory.mkdir()


def test_names_of_sockets_are_short_and_never_the_same() -> None:
    names = {
        socketdir.socket_name(name, start, serial)
        for name in ("a/b", "a/c" * 80)
        for start in (time.time_ns() // 1_000_000, 1)  # a container's next start may have the same pid
        for serial in (1, 2)
    }
    assert len(names) == 8
    assert all(len(name) <= scalars.SOCKET_NAME and str(os.getpid()) in name for name in names)


def test_a_directory_gives_no_name_twice(directory: SocketDir) -> None:
    assert len({directory.new_name("a/b") for _ in range(20)}) == 20


def test_a_kubelet_whose_socket_gets_other_rights_is_the_same(directory: SocketDir, plugins: Path) -> None:
    with bound(plugins / "kubelet.sock"):
        directory.look()
        before = directory.kubelet.get()
        (plugins / "kubelet.sock").chmod(0o700)
        directory.look()
        assert before is not None
        assert directory.kubelet.get() == before


def test_a_second_daemon_is_told_and_the_first_goes_on(
    directory: SocketDir, plugins: Path, watcher: Watcher
) -> None:
    directory.open()
    second = SocketDir(str(plugins), watcher)
    with pytest.raises(AlreadyRunning, match="another nodeagent serves") as caught:
        second.open()
    assert "systemctl stop nodeagent" in caught.value.hint
    second.close()
    directory.look()


def test_the_lock_ends_with_the_first(directory: SocketDir, plugins: Path, watcher: Watcher) -> None:
    directory.open()
    directory.close()
    second = SocketDir(str(plugins), watcher)
    second.open()
    second.close()


def test_one_that_is_not_exclusive_takes_no_lock(
    directory: SocketDir, plugins: Path, watcher: Watcher
) -> None:
    directory.open()
    other = SocketDir(str(plugins), watcher, exclusive=False)
    other.open()
    other.close()


def test_a_directory_that_was_made_anew_is_locked_anew(
    directory: SocketDir, plugins: Path, watcher: Watcher
) -> None:
    directory.open()
    made_anew(plugins)
    directory.look()
    with pytest.raises(AlreadyRunning):
        SocketDir(str(plugins), watcher).look()


def test_a_lock_file_that_was_removed_is_locked_anew(
    directory: SocketDir, plugins: Path, watcher: Watcher
) -> None:
    directory.open()
    (plugins / socketdir.LOCK).unlink()
    directory.look()
    with pytest.raises(AlreadyRunning):
        SocketDir(str(plugins), watcher).look()


def test_a_directory_that_another_took_meanwhile_ends_us(
    directory: SocketDir, plugins: Path, watcher: Watcher
) -> None:
    directory.open()
    made_anew(plugins)
    other = SocketDir(str(plugins), watcher)
    other.look()
    with pytest.raises(AlreadyRunning):
        directory.look()
    other.close()


async def test_being_ended_by_another_comes_out_of_the_watch(
    directory: SocketDir, plugins: Path, watcher: Watcher
) -> None:
    directory.open()
    made_anew(plugins)
    other = SocketDir(str(plugins), watcher)
    other.look()
    with anyio.fail_after(5), pytest.raises(AlreadyRunning):
        await watcher.run()
    other.close()


def test_an_absent_directory_is_waited_for(tmp_path: Path, watcher: Watcher) -> None:
    directory = SocketDir(str(tmp_path / "later"), watcher)
    directory.open()
    found = [directory.exists]
    assert directory.kubelet.get() is None
    (tmp_path / "later").mkdir()
    directory.look()
    assert [*found, directory.exists] == [False, True]
    assert (tmp_path / "later" / socketdir.LOCK).exists()
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
    assert left == ["nodeagent-notes.txt", "nodeagent-served.sock", socketdir.LOCK, "vendor.sock"]


def test_the_kubelets_socket_is_known_by_its_identity(directory: SocketDir, plugins: Path) -> None:
    directory.open()
    assert directory.kubelet.get() is None
    with bound(plugins / "kubelet.sock"):
        directory.look()
    first = directory.kubelet.get()
    assert first is not None
    assert directory.age < 5
    (plugins / "kubelet.sock").unlink()
    with bound(plugins / "kubelet.sock"):
        directory.look()
    assert directory.kubelet.get() not in (None, first)
    directory.look()
    assert directory.kubelet.version == 2


async def test_pokes_come_for_the_own_name_and_for_the_kubelets_only(
    directory: SocketDir, plugins: Path, watcher: Watcher
) -> None:
    mine: Heard[str] = Heard()
    other: Heard[str] = Heard()
    directory.open()
    directory.subscribe(NAME, lambda: mine("poke"))
    directory.subscribe("nodeagent-other.sock", lambda: other("poke"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        (plugins / ".123").write_text("")
        (plugins / "vendor.sock").write_text("")
        with bound(plugins / NAME):
            await mine.until(lambda told: len(told) == 1)
        assert other.all == []
        with bound(plugins / "kubelet.sock"):
            await other.until(lambda told: len(told) == 1)
        await mine.until(lambda told: len(told) == 2)
        directory.unsubscribe(NAME)
        os.unlink(plugins / "kubelet.sock")
        await other.until(lambda told: len(told) == 2)
        tasks.cancel_scope.cancel()
    assert len(mine.all) == 2


async def test_the_checkpoint_is_counted_and_pokes_nobody(
    directory: SocketDir, plugins: Path, watcher: Watcher
) -> None:
    mine: Heard[str] = Heard()
    directory.open()
    directory.subscribe(NAME, lambda: mine("poke"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        (plugins / ".1").write_text("{}")
        (plugins / ".1").rename(plugins / socketdir.CHECKPOINT)
        with anyio.fail_after(5):
            await directory.checkpoint.newer(0)
        tasks.cancel_scope.cancel()
    assert mine.all == []


async def test_when_the_directory_is_made_anew_all_are_poked(
    directory: SocketDir, plugins: Path, watcher: Watcher
) -> None:
    mine: Heard[str] = Heard()
    directory.open()
    directory.subscribe(NAME, lambda: mine("poke"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        made_anew(plugins)
        await mine.until(lambda told: len(told) >= 1)
        tasks.cancel_scope.cancel()
    assert (plugins / socketdir.LOCK).exists()
