# SPDX-License-Identifier: Apache-2.0
"""The root of all paths: reading answers None for whatever cannot be had."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import MOST, Root
from tests import exhausted


def test_paths_lie_below_the_prefix_and_lead_back(tmp_path: Path) -> None:
    root = Root(tmp_path)
    assert root.path("/sys/x") == f"{tmp_path}/sys/x"
    assert root.host_path(f"{tmp_path}/sys/x") == "/sys/x"
    assert not root.is_host
    assert str(tmp_path) in repr(root)


@pytest.mark.parametrize("prefix", ["/", "//", "/.", "/tmp/.."])
def test_the_real_root_is_the_host(prefix: str) -> None:
    assert Root(prefix).is_host
    assert Root(prefix).path("/sys") == "/sys"


def test_a_relative_prefix_means_the_working_directory() -> None:
    assert Root("tree").path("/sys") == f"{os.getcwd()}/tree/sys"


def test_text_is_stripped_and_whole(tmp_path: Path) -> None:
    root = Root(tmp_path)
    (tmp_path / "short").write_text(" 0x10de \n")
    (tmp_path / "long").write_text("line\n" * 50_000)
    (tmp_path / "page").write_text("x" * 256)
    (tmp_path / "empty").write_text("\n")
    assert root.text("/short") == "0x10de"
    assert root.text("/long") == ("line\n" * 50_000).strip()
    assert root.text("/page") == "x" * 256
    assert root.text("/empty") == ""


def test_a_file_that_goes_on_and_on_is_read_to_a_bound_and_is_no_text(tmp_path: Path) -> None:
    root = Root(tmp_path)
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "most").write_text("x" * MOST)
    (tmp_path / "more").write_text("x" * (MOST + 1))
    assert root.text("/endless") is None
    assert root.text("/most") == "x" * MOST
    assert root.text("/more") is None
    assert root.text("/more", most=MOST + 1) == "x" * (MOST + 1)


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    root = Root(tmp_path)
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for path in ("/absent", "/bad", "/directory", "/dangling", "/loop", "/bad/below"):
        assert root.text(path) is None
    for path in ("/absent", "/dangling", "/loop"):
        assert not root.exists(path)
        assert root.names(path) == ()
    assert root.link("/bad") is None
    assert root.link("/dangling") == "nowhere"


def test_a_link_is_known_by_its_last_component(tmp_path: Path) -> None:
    root = Root(tmp_path)
    (tmp_path / "driver").symlink_to("../../../bus/pci/drivers/vfio-pci")
    assert root.link("/driver") == "vfio-pci"
    assert root.target("/driver") == "../../../bus/pci/drivers/vfio-pci"


def test_names_are_sorted_and_inodes_tell_directories_apart(tmp_path: Path) -> None:
    root = Root(tmp_path)
    for name in ("b", "a", "c"):
        (tmp_path / name).mkdir()
    assert root.names("/") == ("a", "b", "c")
    with root.directory("/a") as one, root.directory("/b") as other:
        assert one.inode != other.inode


def test_an_open_directory_reads_the_same(tmp_path: Path) -> None:
    root = Root(tmp_path)
    (tmp_path / "d/sub").mkdir(parents=True)
    (tmp_path / "d/vendor").write_text("0x10de\n")
    (tmp_path / "d/link").symlink_to("../x/y")
    with root.directory("/d") as directory:
        assert sorted(directory.names()) == ["link", "sub", "vendor"]
        assert directory.texts(["vendor", "absent"]) == ["0x10de", None]
        assert directory.text("vendor") == "0x10de"
        assert (directory.link("link"), directory.link("vendor")) == ("y", None)
        assert directory.exists("vendor")
        assert not directory.exists("link")
        assert directory.inode == (tmp_path / "d").stat().st_ino
    with pytest.raises(FileNotFoundError):
        root.directory("/absent")


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    root = Root(tmp_path)
    (tmp_path / "bad").write_bytes(b"\xff")
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        root.text("/bad")
        root.text("/")
        root.names("/")
        with root.directory("/") as directory:
            directory.text("bad")
    assert os.listdir("/proc/self/fd") == before


LOOKS: list[Callable[[Root], object]] = [
    lambda root: root.names("/sys"),
    lambda root: root.text("/sys/enable"),
    lambda root: root.directory("/sys"),
]


@pytest.mark.parametrize("look", LOOKS, ids=["names", "text", "directory"])
def test_who_may_open_nothing_has_not_looked(tmp_path: Path, look: Callable[[Root], object]) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/enable").write_text("1")
    with exhausted.no_descriptors(), pytest.raises(KernelRefused) as caught:
        look(Root(tmp_path))
    assert caught.value.errno == errno.EMFILE


def test_an_open_directory_does_not_tell_what_it_could_not_look_at(tmp_path: Path) -> None:
    (tmp_path / "devices").mkdir()
    with Root(tmp_path).directory("/") as at, exhausted.no_descriptors():
        for look in (lambda: at.names(), lambda: at.inodes("devices"), lambda: at.text("devices")):
            with pytest.raises(KernelRefused):
                look()
