# SPDX-License-Identifier: Apache-2.0
"""Addresses and UUIDs as people write them; the cases of KubeVirt's parser are among them."""

from __future__ import annotations

import pytest

from nodeagent.model import ids


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:81:11.1", "0000:81:11.1"),
        ("05EA:Fc:1d.6", "05ea:fc:1d.6"),
        ("3b:00.0", "0000:3b:00.0"),
        (" 0000:3b:00.0\n", "0000:3b:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
    ],
)
def test_an_address_is_understood(text: str, address: str) -> None:
    assert ids.pci_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "0000:81:11:1",
        "00Z0:81:11.1",
        "0000:z0:11.1",
        "0000:81:Zd.1",
        "0000:81:11.9",
        "0000:81:20.0",
        "",
        "81",
    ],
)
def test_what_is_no_address_is_none(text: str) -> None:
    assert ids.pci_address(text) is None


def test_a_uuid_is_understood_in_either_case() -> None:
    uuid = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
    assert ids.mdev_uuid(f"{uuid.upper()}\n") == uuid
    assert ids.mdev_uuid(uuid[:-1]) is None
    assert ids.mdev_uuid("mtty") is None


def test_long_domains_sort_behind_short_ones() -> None:
    addresses = ["10000:00:00.0", "ffff:00:00.0", "0000:81:00.0", "0000:03:00.1"]
    assert sorted(addresses, key=ids.pci_order) == addresses[::-1]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", {0}), ("0-3", {0, 1, 2, 3}), ("1,3-4,1", {1, 3, 4}), ("", None), ("3-1", None), ("1,", None)],
)
def test_numbers_of_vfs_are_single_ones_and_ranges(text: str, numbers: set[int] | None) -> None:
    found = ids.vf_numbers(text)
    assert (found and {number for each in found for number in each}) == numbers
