# SPDX-License-Identifier: Apache-2.0
"""Classes in words, and advice that could cost a host its network, its disks or its keyboard."""

from __future__ import annotations

import pytest

from nodeagent.policy import classes
from tests.facts import contains, names
from tests.policy.samples import function


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("010802", "an NVMe controller"),
        ("010601", "a storage controller"),
        ("020000", "a network controller"),
        ("030000", "a display controller"),
        ("0c0330", "a USB controller"),
        ("ff0000", "a device of an unknown class"),
        (None, "a device of an unknown class"),
    ],
)
def test_a_class_is_said_in_words_as_exactly_as_they_are_known(code: str | None, words: str) -> None:
    assert classes.describe_class(function(pci_class=code)) == words


@pytest.mark.parametrize("code", ["010802", "020000", "0c0330", "060100", "030000", "030200", "120000", None])
def test_what_a_host_may_live_show_or_compute_on_is_bound_only_if_it_can_do_without(code: str | None) -> None:
    found = function("0000:65:00.1", pci_class=code, driver="busy")
    names(classes.advise_bind(found, " as well"), "0000:65:00.1", "vfio-pci", "host")
    assert classes.describe_class(found) in classes.advise_bind(found)


@pytest.mark.parametrize(("code", "driver"), [("030000", None), ("040300", "snd"), ("020000", None)])
def test_what_no_host_lives_on_or_nobody_drives_is_bound_without_ado(code: str, driver: str | None) -> None:
    found = function("0000:65:00.1", pci_class=code, driver=driver)
    names(classes.advise_bind(found), "0000:65:00.1", "vfio-pci")
    assert not contains(classes.advise_bind(found), "host")


def test_a_gpu_that_vfio_has_already_is_none_that_the_host_shows_on() -> None:
    found = function("0000:65:00.0", pci_class="030000", driver="nvgrace_gpu_vfio_pci", vfio=True)
    names(classes.advise_bind(found), "0000:65:00.0", "vfio-pci")
    assert not contains(classes.advise_bind(found), "host")


def test_what_carries_others_is_bound_only_after_they_are_gone() -> None:
    card = function("0000:65:00.0", driver="nvidia", vfs=("0000:65:00.4", "0000:65:00.5"))
    names(classes.advise_bind(card, mdevs=1), "1 mdev", "2 VFs", "0000:65:00.0", "vfio-pci")
