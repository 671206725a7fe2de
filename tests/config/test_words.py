# SPDX-License-Identifier: Apache-2.0
"""Single words of the configuration: units, and the last values that are still taken."""

from __future__ import annotations

import pytest

from nodeagent.config import words
from nodeagent.config.codec import Scalar, Word
from nodeagent.config.problems import Invalid


def read(word: Word, text: str) -> object:
    return word.read(Scalar(text, "config.yaml:1"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), ("0.5h", 1800.0)]
)
def test_a_duration_is_a_number_of_seconds_in_its_unit(text: str, seconds: float) -> None:
    assert read(words.duration(0.0, 86400.0), text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "taken"), [("99ms", False), ("100ms", True), ("2m", True), ("121s", False)])
def test_the_bounds_of_a_duration_belong_to_it(text: str, taken: bool) -> None:
    word = words.duration(0.1, 120.0)
    if taken:
        assert read(word, text)
        return
    with pytest.raises(Invalid) as refused:
        read(word, text)
    assert "from 100ms to 120s" in refused.value.hint


@pytest.mark.parametrize(("size", "taken"), [(107, True), (108, False)])
def test_a_path_of_a_socket_is_as_long_as_an_address_of_the_kernel(size: int, taken: bool) -> None:
    text = "/".ljust(size, "x")
    if taken:
        assert read(words.WORDS["socket"], text) == text
        return
    with pytest.raises(Invalid, match=f"the path has {size} bytes"):
        read(words.WORDS["socket"], text)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        *(("nodeagent.local", True), ("a", True), ("a-1.9.example", True), ("a" * 63, True)),
        *(("a" * 64, False), ("9.example", False), ("A.example", False), ("a..b", False), ("a-", False)),
    ],
)
def test_a_dra_driver_is_a_short_domain_that_starts_with_a_letter(text: str, taken: bool) -> None:
    if taken:
        assert read(words.WORDS["DRA driver"], text) == text
        return
    with pytest.raises(Invalid, match="no name of a DRA driver"):
        read(words.WORDS["DRA driver"], text)


@pytest.mark.parametrize("text", ["", "127.0.0.1:9481", "[::1]:9481", "0.0.0.0:0", "[::]:65535"])
def test_an_address_to_listen_at_is_an_ip_address_with_a_port(text: str) -> None:
    assert read(words.WORDS["address to listen at"], text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("9481", ":9481", "localhost:9481", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:+1"),
        *("127.0.0.1:\u0661", "::1:9481", "[127.0.0.1]:1", "[::1]", "[::1:1", "1.2.3:4", "127.0.0.1:01"),
    ],
)
def test_anything_else_is_no_address_to_listen_at(text: str) -> None:
    with pytest.raises(Invalid, match="not an IP address with a port") as refused:
        read(words.WORDS["address to listen at"], text)
    assert "127.0.0.1:9481" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("/dev/vfio/vfio", True),
        ("/dev/vfio/renderD128", True),
        ("/dev/vfio", False),
        ("/dev/vfio/noiommu-3", False),
        ("/dev/vfio/20", False),
        ("/dev/vfio/devices/vfio0", False),
        ("/dev/iommu", True),
    ],
)
def test_the_node_of_an_iommu_group_is_not_shared_out(text: str, taken: bool) -> None:
    for word in (words.WORDS["device node"], words.WORDS["device nodes"]):
        if taken:
            assert read(word, text) == text
            continue
        with pytest.raises(Invalid, match="IOMMU groups") as refused:
            read(word, text)
        assert "pci or mdev" in refused.value.hint


@pytest.mark.parametrize("text", ["/dev/vfio/*", "/dev/vfio/2[0-9]", "/dev/vfio/devices/vfio?"])
def test_no_pattern_means_the_nodes_of_iommu_groups(text: str) -> None:
    with pytest.raises(Invalid, match="IOMMU groups"):
        read(words.WORDS["device nodes"], text)
